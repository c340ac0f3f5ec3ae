"""Says how much anyone may make this server hold, and in which rhythm it looks.

Only what the server alone needs; the limits of the wire are in `contract.config`.
"""

from ncclwatch.contract import config

# What agents may make the server hold.
AGENTS_MAX = 16_384
AGENTS_SHARE_MAX = 0.5  # of the connections of agents: those of one bound token
JOBS_MAX = 8192
JOBS_PER_AGENT_MAX = 64  # at a time
JOBS_PER_HOST_MAX = 256  # begun by all agents of one token that say to be on one host
JOBS_SHARE_MAX = JOBS_MAX // 4  # of one bound token that does not say jobs=; of one namespace
ASTRAY_PER_AGENT_MAX = 4  # of them, whose ranks say another number of ranks than the job has
CONTESTED_MAX = 64  # connections of one job that claim ranks of others
RANKS_MAX = 200_000  # of one job
RANKS_TOTAL_MAX = 400_000  # seen
RANKS_SHARE_MAX = RANKS_TOTAL_MAX // 4  # of one bound token that does not say ranks=; of one namespace
SAID_MAX = 4_000_000  # ranks that jobs say to have: 25 bytes each
SAID_SHARE_MAX = SAID_MAX // 4  # of one bound token; of one namespace
UNSEEN_PER_AGENT_MAX = RANKS_MAX  # ranks still to come of the jobs that one connection has begun
REFUSED_PER_AGENT_MAX = 1024  # jobs that one connection may remember as refused or over
AGENTS_PER_RANK_MAX = 2  # remembered of a job, and some more
GROUPS_PER_RANK_MAX = config.GROUPS_MAX
GROUP_ROWS_MAX = 4_000_000  # of one job: 160 MB
VIEWS_MAX = 4096  # full views kept for one job
VIEWS_BYTES_PER_LINE_MAX = 64 * 1024 * 1024  # of them in memory, by `wire.weight_of`: those from one connection,
VIEWS_BYTES_PER_JOB_MAX = 512 * 1024 * 1024  # of one job,
VIEWS_BYTES_MAX = 1024 * 1024 * 1024  # and of all jobs
MEMBERS_MAX = 4_000_000  # that the groups of one job may have together when it is judged: 8 bytes each, until then
ANSWER_BYTES_MAX = 16 * 1024 * 1024  # of an answer with stacks that comes in parts
ASKED_KEPT_MAX = 1024  # commands to one agent to which answers are taken
OUTBOX_MAX = 64  # messages that wait for one slow agent
OPEN_PER_JOB_MAX = 32
OPEN_MAX = 1024  # incidents
OPEN_SHARE_MAX = OPEN_MAX // 4  # of them of the jobs of one bound token; of one namespace
CLOSED_KEPT_MAX = 1000  # in memory; the store keeps all
UNSTORED_MAX = 2000  # incidents that wait for a store that fails; as many lessons, as many lines of the audit log
CONNECTIONS_MAX = AGENTS_MAX + 2048  # of agents and readers
HELLO_BYTES_MAX = config.KIND_BYTES_MAX["hello"]  # of a message before its sender has said who it is
PLAIN_BYTES_MAX = 64 * 1024  # of a message that is read in the event loop; longer ones are read in a thread
LINES_BYTES_MAX = 256 * 1024 * 1024  # kept for the lines of all agents: messages that are not complete, unread, unsent
TURN_S = 0.005  # CPU time of the event loop that a line may take at once
TURN_PAUSE_TIMES, TURN_PAUSE_S_MAX = 9, 2.0  # as long as that it then pauses, for each line that does; and at most
NEWCOMERS_MAX = 2048  # connections that have not shown who they are; of one address half as many
READERS_KEPT = 16  # connections that agents do not take
DESCRIPTORS_KEPT = 64  # that connections do not take: for the store, alerts, what is always open
TLS_S = 10.0  # in which a TLS handshake must be done
HEAD_BYTES_MAX = 16 * 1024  # of a request: its line and headers
PIPELINED_MAX = 16  # requests of one connection that wait for the answer to an earlier one
STRANGE_BODY_BYTES_MAX = 16 * 1024  # of a request that shows no token where one is asked for
BODY_BYTES_MAX = 1024 * 1024  # of a request
HEAD_S = 10.0  # in which a request's headers must come
BODY_S = 20.0  # the same of its body
LAST_WORDS_S = 5.0  # in which a reader must take what is left when its connection closes
READ_S = 60.0  # in which a reader must take something of its answer

# When something is worth a look.
WAIT_S = 1.0  # a wait that only peers can end, older than this
STILL_S = 0.5  # and the rank's frontier has not moved for so long
SILENT_S = 5.0  # an agent that sent nothing for so long
SPARE_S = 45.0  # in which the ranks of a spare node attach after those of the others
RUNS_SETTLE_S = 10.0  # who lives in a run for so long after a later one began is of the later one
NODES_LATE_S = 15.0  # then the ranks of other nodes are said not to report
PARTIAL_S = 5.0  # a job of which not all ranks are known yet is not judged before
DESYNC_EVERY_S = 2.0  # between two comparisons of all ranks: two digests apart, and soon, while histories still hold it
DESYNC_REMEMBERED_S = 60.0  # a difference that was seen once, until it is seen again
DESYNC_RANKS_MAX = 16  # inspected of each side
DESYNC_ROWS_MIN = 2048  # compared at one tick, if there are so many
DESYNC_PORTIONS = 256  # in which the rows of a very big job are compared, one at each tick

# Rhythm.
TICK_S = 1.0
FEW_JOBS = 32  # up to so many are all looked at whenever there is news
CALM_LOOKS_PER_S = 300  # at jobs of which nothing shows
SCREEN_S = 0.5  # between two looks whether anything shows of them
LOOKS_AT_ONCE = 32  # then whoever else has news is let through
CLAIM_AGAIN_S = 1.0  # between two tries to give ranks to those who wait for them
SOON_S = 0.05
DIGEST_LOOK_S = 0.2  # news of digests is looked at together, this long after the first
HELLO_S = 5.0
PING_S = 20.0  # an agent that said nothing for so long is asked for a sign of life, and has as long for it
ANSWER_S = 1.5  # for answers to INSPECT
PAUSE_S = 0.6  # from answers to the next INSPECT
CONFIRM_S = 0.4  # between two snapshots that show the same verdict
STACKS_FIRST_S = 1.5  # an opening waits so long for stacks
STACKS_NEEDED_S = 4.0  # the same where a culprit cannot speak for itself
STACKS_S = 6.0  # stacks that come later than this are not attached
STACKS_DEEP_S = 20.0  # the same of native frames, which take a second for each rank
CALM_S = 3.0  # without anything suspicious: the job makes progress
SETUP_S = 5.0  # ranks that have not said how they were set up are waited for so long
FINAL_S = 1.0  # a job that is over waits so long for the last views
FINAL_PARTIAL_S = 2.5  # and so long if some of its ranks were never seen
ABANDONED_S = 120.0  # a job, a rank, or a stored open incident, of which no agent speaks
ENDED_KEPT_S = 3600.0  # ended jobs stay listed
RESTART_S = ENDED_KEPT_S  # a job that is started again later than this is not known to be the one that hung
COME_BACK_S = 60.0  # after which the agents of running jobs have come to a server that was started
EXPIRE_TICKS = 60  # between two looks for incidents that are kept no longer
# A round of the watch is one look at one job; at 98,304 ranks that hang it took up to 1.1 s (make layouts).
WATCH_STILL_S = 15.0  # a watch that has not gone on for so long does no good: /healthz says so
WATCH_ENDS_S = 60.0  # and after so long the process ends, to be started again
LEADER_STILL_S = 4.0  # a leader whose judging has not gone round for so long lets another server lead
PART_STILL_S = 30.0  # any other loop that has not finished a round for so long is reported
PART_ENDS_S = 300.0  # and after so long the process ends, unless the loop waits for a disk or a database

# What is asked for.
INSPECT_ALL_MAX = 256  # up to this world size all ranks are inspected
SAVING_MAX = 64  # ranks looked at because they seem to write one file, or cannot write theirs
SETUPS_PER_NODE_MAX = 64  # kinds of ranks on one node, by how they were set up
SETUPS_BYTES_MAX = 1024 * 1024  # of what the kinds of ranks of one job have wrapped; of further ones it is left out
SETUPS_MAX = 16_384  # kinds of ranks of one job
PARAMETERS_KEPT_MAX = 16  # models whose parameters are known by name
PARAMETER_RANKS_MAX = 16  # of how many ranks for each model
WORLDS_MAX = 16  # numbers of ranks that nodes say one job to have
NOTED_MAX = 64  # ranks looked at for what they found out about themselves
INSPECT_MAX = 256  # of a bigger job: those to which the waits lead, and those round them
STACK_RANKS_MAX = 64
STACK_FIRST_MAX = 16  # of them before a verdict is told
CAPTURE_INCIDENTS_MAX = 64  # in one capture, the newest
STACK_DEEP_MAX = 4  # suspects whose native frames and children are looked at
COMMUNICATORS_MAX = 256  # of one job, by NCCL's RAS
