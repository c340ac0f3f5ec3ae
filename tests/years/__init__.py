"""Days of simulated jobs, through the real watch, state, judge and incident book, faster than real time.

A job-day is 24 hours of one job on a virtual clock. What happens in it is drawn per job from its seed. The server's own
loop runs: ticks, looks, questions to agents and judgements come when it decides. Two times are left out: ordinary
steps between two happenings, and within a wait of more than 30 s the moments at which nothing changes but ages; there
the server runs for 16 s, then for 1.8 s at ages that grow by half, and for the last 4 s.

What is drawn (durations are log-uniform between the bounds, numbers a day uniform):

| what happens | a day | how long |
|---|---|---|
| validation of all ranks, 2 to 40 % apart | 0-8 | 5 s to 15 min |
| validation by rank 0 alone, others in a barrier | 0-3 | 10 s to 30 min |
| save by rank 0, others in a barrier; flush up to 30 s | 0-6 | 5 s to 20 min |
| save of a part by each rank | 0-4 | 5 s to 10 min |
| save in a background thread | 0-6 | 5 s to 10 min |
| torch.compile on all or some ranks | 0-3 | 10 s to 8 min |
| loader waits on a rank or a node, each up to 5 s without any sign of work | 0-5 | 1 s to 90 s |
| garbage collection with the interpreter's lock held | 0-4 | 0.2 s to 8 s |
| a rank slower by 1.3 to 3 | 0.3 | 1 h |
| digests of a node late, 15 % lost | 0-3 | 3 s to 60 s |
| an agent started again | 0-0.5 | 2 s to 40 s |
| a node cut off from the server alone | 0-1 | 20 s to 15 min |
| a whole node stands still, its agent too: it moves (70 %) or is stopped | 0-0.2 | 5 s to 120 s |
| end of an epoch | 0-3 | |
| end of an epoch under Join, up to 4 batches apart | 0-1 | |
| preempted in the midst, next attempt after 5 s to 10 min; it skips batches for up to 15 min | 0-0.5 | |
| end of the job: others within 2 min, rank 0 saves and uploads for up to 5 min | 1 | |

A quarter of what happens has late digests, an agent's start or a cut beside it. No wait exceeds 85 % of the group's
timeout (10, 30 or 60 min). Steps take 0.3 to 6 s, each part x 0.7 to 1.4; 1 to 4 batches are accumulated. Ranks: 2
(24 %), 4 (36 %), 8 (32 %), 16 (6 %), 32 and 64 (1 % each), 1,024 (one job in 5,000), in tensor, data and pipeline
groups. A tenth of the hosts have clocks that are wrong by up to 5 min.
"""
