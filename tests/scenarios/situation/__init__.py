"""A tiny language for situations of a job, and how it becomes what the judge judges.

One command a line; ranks are written "0-2,5"; a site is "train.py:44" (in function step).

    world N [hosts 2]                          ranks that exist; all are alive, outside, and at work
    group NAME RANKS                           a process group
    lost GROUP [size N]                        at the end: nobody has the list of its members, or more than their number
    unused RANKS GROUP                         at the end: they have no record of it, for they have not used it yet
    in RANKS GROUP#SEQ OP SITE for S [KEY=VALUE...]   blocked in a collective (numel=, dtype=, root=, reduce=);
                                               from=SITE+SITE: the lines that called SITE's function, innermost first
                                               module=codec/quantize/Quantizer/train/no_grad: in whose forward
    begun RANKS GROUP#SEQ OP SITE for S [KEY=VALUE...]   issued asynchronously so long ago, and not finished
    modes RANKS codec/quantize/Quantizer/eval  the mode of a module now
    backward RANKS GROUP#SEQ SITE for S        in backward, a bucket of DDP unfinished
    device RANKS GROUP#SEQ OP SITE for S [sync] [blind]   issued on a device so long ago, and not finished
    device RANKS GROUP#N send|recv SITE for S root=PEER [sync]   so many messages to or from one rank; who knows
                                               whether they are through
                   ... told|behind [through=N]   it is told: the device is in the oldest that is not through, or not yet
    host RANKS SITE for S [calling NAME] [in WAIT] [spins]   where the host stands that has run ahead of its device
    send|recv RANK PEER#N SITE for S [through=N]   blocked in p2p; receives that are through, if not all before it
    seen RANKS S [taken S]                     their views came so long ago, and were asked for so long before that
    init RANKS SITE for S                      in init_process_group
    making RANKS SITE for S [number N] [of RANKS] [alone RANKS]   in new_group, of the group with that number; who will
                                               be in it; who alone makes it
    counts RANKS N                             so many groups torch had counted there after the last one
    knows RANKS N                              so many groups torch knew there when a thread came to new_group
    free_threads RANKS N                       so many threads that have issued nothing may do so yet
    made RANKS GROUP SITE                      where these ranks made the group
    named RANKS GROUP NAME                     at the end: these ranks know the group by another name
    key RANKS SITE for S [name NAME]           waits for a key of the store
    keys RANKS NAME...                         the names of keys that they have set
    at RANKS SITE [still S] [in data|save] [cpu S] [io S]   outside of everything
    stopped RANKS for S                        state T
    gil RANKS for S [busy] [cpu=S] [io=S]      no pulse for so long
    disk RANKS SITE for S                      state D
    ended RANKS exit CODE | unseen | signal N | error "Type: text" SITE [by N]   [ago S]
                                               by N: a signal has ended a rank that had raised
    leaving RANKS for S                        they have left their programs well, and their processes are there still
    unseen RANKS
    unasked RANKS                              an agent reports them; in a big job not all are asked for their views
    unattached RANKS                           seen from outside only
    handling RANKS "Type: text" [noted S]                inside an except block
    loader RANKS SITE pass N drawn N [exhausted] [last N]
    history RANKS GROUP#FIRST-LAST OP SITE [batch N] [forward N] [ago S] [from=...]   completed, counters grow by one
    source RANKS SITE [text LINE] [if "TEST"] [other OP,...] [loop "HEAD" A-B] [escape "TEXT"] [return "TEXT"]
         [leaves "TEXT"] [outer "HEAD"]   the loop round that one
    frames RANKS SITE SITE...                  the user's frames, innermost first
    endpoint RANKS HOST:PORT
    thread RANKS issued N [still S] [in CALL]  a second thread that has issued operations, and in what system call it is
    names RANKS MAIN SECOND                    an idle second thread, and what both are called; thread=2 issues from it,
                                               and waits in it
    destroyed RANKS GROUP                      these ranks have destroyed the group
    hash RANKS GROUP N [late]                  the hash over all that they issued in a group
    kernel RANKS PLACE                         where the main thread sits in the kernel
    lost_thread RANKS NAME "Type: text" SITE ago S   an exception ended a thread of theirs, the one of that name
    answer RANKS                               what the main thread may wait for receives from a socket
    child RANKS PID stopped | killed N         what is wrong with a process that they have started
    standing RANKS "FUNCTION FILE:LINE"        the innermost frame of the main thread, in none of the user's
    refused RANKS                              the kernel does not tell of their I/O
    sampled RANKS same S [in FUNCTION]         their stack was seen, the same for so long; 0: it has just changed
    lock RANK HOLDER PATH SITE for S           waits for a file lock that a rank holds, or "pid" for a stranger
                               polled S        tries to take it again and again
    caught RANKS "Type: text" S                handled so long ago, and no more
    over RANKS for S                           their program is over, and the interpreter waits for a thread
    lock_file RANKS PATH [by PID] [ended 1]    they cannot make a file because it is there, and whose it is
    timed RANKS CALL left S of S [child PID [awaited 1]]   the wait of the main thread, or of a process it started, ends
                                               by itself; another thread waits for processes
    habit PHASE OP SIZE longest S [waits N] [bound S] [still S] [under S]   what this job has done before in such a
                                               wait, and the timeout that it had then
    passed GROUP#SEQ PHASE...                  what the late ranks have done since that wait began
    phase RANKS NAME                           the user's mark
    work RANKS PHASE                           what a framework does on the stack of the main thread
    recorder RANKS GROUP#SEQ OP [done] [early N]   newest collective by torch's Flight Recorder; early: N operations ago
    launched RANKS N [by GROUP]                collectives by NCCL's RAS, of the group's communicator
    save RANKS CALL PATH SITE began S [ended S] [id NAME|-] [written N] [rate N] [still S] [error TEXT] [refused TEXT]
         [total N] [as_before] [lacks N] [free N] [appends] [unanswered S] [thread 2]
         a save of theirs; id: of the file, PATH if left out, "-" for none
    cuda RANKS UUID [index N] [chosen N] [used 1] [count N] [visible LIST] [by BACKEND] [may WHY] [sick TEXT]
    rng RANKS SAVED PRESENT SITE [own N]       restored so many states of devices to so many devices
    facts RANKS KEY=VALUE...                   what they say of how they were set up (backend=nccl, NCCL_ALGO=Ring)
    wrapped RANKS KIND MEMBERS [used] PARAMETER... [/ PARAMETER...]   models; "w float32 4x4", "/" between units
    sampler RANKS SITE PARTS [own|first|local|other] [samples=N] [length=N] [seed=N]   at the first pass of a loop
    says RANKS N                               they say that the job has N ranks
    twice RANKS HOST...                        ranks that exist twice
    clock HOST S                               by how much its clock is ahead of the server's
    timeout S                                  of the default group
    limit GROUP S                              of one group
    steps RANKS N                              optimizer steps made
    known S                                    for how long the server has known the job
    stack RANKS "FUNCTION FILE:LINE"...        what py-spy shows of the main thread, innermost first
    child_stack RANKS PID "FUNCTION FILE:LINE"...   the same of a process that they wait for
    unstacked RANKS "WHY"                      there are no stacks of them
    silent RANKS [for S] [mute S] [closed S] [acknowledges S] [reached S from HOST]   their node tells nothing any
                                               more; what the connection to it shows, and for how long
    cut_off HOST                               the server is on that host, and no other one reports
    speaks RANKS                               it does again

A story goes on: `after 5 s:` begins what is new then. Who stood still has stood still for so much longer, and who was
at work is at work.

    through RANKS GROUP#SEQ                    the collective is over, and they are at work
    goes_on RANKS                              they are at work again

And what a text says of itself, where it cannot be told in another way than at one instant to the judge:

    unheard "REASON"                           no server that hears its ranks says the same
    alone "REASON"                             nor does one that hears more ranks, at work in the same job
    unfiled "REASON"                           nor do the files that its ranks leave

    live                                       real ranks play it, too: see tests/integration/test_scenarios_live.py
"""

from tests.scenarios.situation.situation import Situation

__all__ = ["Situation"]
