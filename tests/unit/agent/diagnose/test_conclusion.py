"""What is said of ranks that were looked at, and what is not."""

from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, ProcessState, StackDump, StackFrame
from ncclwatch.contract.stacks.places import NOWHERE, Doing, Place
from ncclwatch_agent.diagnose.conclusion import conclude
from ncclwatch_agent.diagnose.looks import Look, Motion, Seen, summarise
from ncclwatch_agent.diagnose.ranks import FoundJob, FoundRank, JobName

C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def place(call: str, line: int, doing: Doing = Doing.COMMUNICATION) -> Place:
    return Place(doing=doing, call=call, site=CallSite(file="/home/u/train.py", line=line, function="train"))


REDUCE, BARRIER = place("all_reduce", 97), place("barrier", 130)
SLEEP, BACKWARD = place("", 88, Doing.CODE), place("backward", 55, Doing.BACKWARD)


def seen(rank: int, where: Place, motion: Motion = Motion.STILL, state: ProcessState = ProcessState.SLEEPING) -> Seen:
    return Seen(
        rank=rank, pid=100 + rank, motion=motion, state=state, place=where, in_kernel="", cpu_share=0.0, ran=0,
        dump=StackDump(rank=rank),
    )  # fmt: skip


def said(*ranks: Seen, local: int = 0, world: int = 0, double: bool = False) -> tuple[str, bool]:
    job = FoundJob(
        job=JobName(name="job", endpoint="", world_size=world or len(ranks)),
        ranks=tuple(FoundRank(rank=one.rank, pid=one.pid, start_ticks=1, local_rank=one.rank) for one in ranks),
        local_world_size=local,
        doubles=((0, (100, 300)),) if double else (),
    )
    found = conclude(job, ranks)
    return " ".join(found.sentences), found.stands


def test_ranks_in_different_calls_are_said_to_be_in_different_calls_and_no_more():
    text, stands = said(seen(0, REDUCE), seen(1, REDUCE), seen(2, BARRIER), seen(3, REDUCE))
    assert text == (
        "Rank 2 is in barrier at train.py:130 in train(), ranks 0-1,3 are in all_reduce at train.py:97 in "
        "train(): they are in different calls. Stacks alone do not show how many calls each has made before, nor in "
        "which process group."
    )
    assert stands


def test_one_call_at_two_lines_may_be_two_calls():
    text, _ = said(seen(0, REDUCE), seen(1, place("all_reduce", 99)))
    assert "the same call at different lines, which may be different calls" in text


def test_a_rank_outside_every_collective_is_awaited_only_with_an_if():
    text, _ = said(seen(0, REDUCE), seen(1, SLEEP), seen(2, REDUCE))
    assert text.startswith(
        "Rank 1 is at train.py:88 in train(), in no collective that its stack shows, while ranks 0,2"
    )
    assert "If that all_reduce needs rank 1, then that is what each of 0,2 waits for." in text


def test_of_all_in_one_call_nothing_can_be_told():
    text, stands = said(seen(0, REDUCE), seen(1, REDUCE))
    assert "Stacks alone do not show why it does not end" in text
    assert stands


def test_a_wait_for_a_rank_at_work_is_no_hang_yet():
    for motion in (Motion.MOVES, Motion.STAYS, Motion.BUSY):
        text, stands = said(seen(0, REDUCE), seen(1, SLEEP, motion))
        assert "A wait for slow work looks the same as the beginning of a hang" in text
        assert "do not show" not in text
        assert stands


@pytest.mark.parametrize("motion", [Motion.MOVES, Motion.STAYS, Motion.BUSY])
def test_where_nobody_stands_still_no_hang_is_visible(motion: Motion):
    text, stands = said(seen(0, REDUCE, motion), seen(1, SLEEP, Motion.MOVES))
    assert text.startswith("No hang is visible: ")
    assert not stands


def test_ranks_that_stand_outside_every_collective():
    text, _ = said(seen(0, SLEEP), seen(1, BACKWARD))
    assert "in no collective that their stacks show. In backward they may wait for the gradients" in text


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            ProcessState.STOPPED,
            "Rank 1 (pid 101) is stopped (state T) and runs nothing until it is continued: kill -CONT",
        ),
        (ProcessState.TRACED, "Rank 1 (pid 101) is held by a debugger (state t)"),
        (
            ProcessState.DISK_WAIT,
            "Rank 1 (pid 101) was in an uninterruptible wait of the kernel (state D) in every look",
        ),
    ],
)
def test_a_frozen_rank_is_named_first_and_the_rest_is_no_riddle(state: ProcessState, words: str):
    text, stands = said(seen(0, REDUCE), seen(1, SLEEP, Motion.FROZEN, state), seen(2, REDUCE))
    assert text.startswith(words)
    assert text.endswith("Ranks 0,2 are in all_reduce at train.py:97 in train().")
    assert stands


def test_where_a_rank_is_stopped_and_the_others_run_no_word_is_said_of_no_hang():
    text, stands = said(seen(0, REDUCE, Motion.MOVES), seen(1, SLEEP, Motion.FROZEN, ProcessState.STOPPED))
    assert "No hang" not in text
    assert text.endswith("Rank 0 moves.")
    assert stands


def test_a_missing_rank_is_told_and_nothing_of_how_it_ended():
    text, stands = said(seen(0, REDUCE), seen(1, REDUCE, Motion.MOVES), local=3)
    assert text.startswith("Rank 2 has no process here, and should: 3 ranks belong on this node")
    assert "Ended, or not started: stacks do not tell." in text
    assert "No hang" not in text
    assert stands


def test_a_rank_that_ends_during_the_looks_is_told():
    text, stands = said(seen(0, REDUCE), seen(1, NOWHERE, Motion.GONE))
    assert text.startswith("Rank 1 ended during the looks.")
    assert stands


def test_ranks_of_other_nodes_are_not_known_here():
    text, _ = said(seen(0, REDUCE), seen(1, REDUCE), local=2, world=4)
    assert "Ranks 2-3 run on other nodes: run this there too." in text
    assert text.endswith("`ncclwatch diagnose --job NAME` lets the agents of all its nodes look.")


def test_without_stacks_only_the_scheduler_speaks():
    text, stands = said(seen(0, NOWHERE, Motion.IDLE), seen(1, NOWHERE, Motion.IDLE))
    assert text.startswith("The stacks of ranks 0-1 could not be read. The scheduler has not run their main threads")
    assert stands


def test_two_processes_of_one_rank_are_told():
    assert "2 processes were started as rank 0 (pids 100, 300)" in said(seen(0, REDUCE), double=True)[0]


def test_of_many_places_four_are_named():
    text, _ = said(*(seen(rank, place("all_reduce", rank)) for rank in range(6)))
    assert text.count("in all_reduce at") == 4
    assert "ranks 4-5 are elsewhere" in text


FRAMES = (
    StackFrame(function="all_reduce", file=C10D, line=3252), StackFrame(function="train", file="/home/u/t.py", line=9),
)  # fmt: skip
DUMP = StackDump(rank=0, threads=(("MainThread", FRAMES),))
LOOK = Look(at_s=0.0, state=ProcessState.SLEEPING, runs=7, cpu_s=1.0, in_kernel="futex", dump=DUMP)
SLEEPER = StackDump(rank=0, threads=(("MainThread", FRAMES[1:]),))


def motion(*looks: Look, runs_after: int = 7) -> Motion:
    timed = tuple(replace(look, at_s=float(number)) for number, look in enumerate(looks))
    return summarise(FoundRank(rank=0, pid=2**22 + 1, start_ticks=1), timed, runs_after).motion


def test_a_thread_that_never_ran_stands_still_and_one_that_ran_once_stays():
    assert motion(LOOK, LOOK, LOOK) is Motion.STILL
    assert motion(LOOK, LOOK, LOOK, runs_after=8) is Motion.STAYS


def test_another_line_in_one_look_of_three_is_motion():
    assert motion(LOOK, replace(LOOK, dump=SLEEPER), LOOK) is Motion.MOVES


def test_one_whose_children_work_does_not_stand_unless_it_waits_for_peers():
    asleep, later = replace(LOOK, dump=SLEEPER), replace(LOOK, dump=SLEEPER, cpu_s=1.5)
    assert motion(asleep, asleep, later) is Motion.STAYS
    assert motion(LOOK, LOOK, replace(LOOK, cpu_s=1.5)) is Motion.STILL


def test_without_the_schedulers_count_cpu_time_decides():
    blind = replace(LOOK, runs=-1)
    assert motion(blind, blind, blind) is Motion.STILL
    assert motion(blind, blind, replace(blind, cpu_s=1.03)) is Motion.STILL
    assert motion(blind, blind, replace(blind, cpu_s=1.05)) is Motion.STAYS


def test_frozen_is_only_who_was_so_each_time():
    stopped = replace(LOOK, state=ProcessState.STOPPED)
    assert motion(stopped, stopped, stopped) is Motion.FROZEN
    assert motion(LOOK, stopped, stopped) is Motion.STILL


def test_without_stacks_it_is_idle_or_busy():
    refused = replace(LOOK, dump=StackDump(rank=0, failure="refused"))
    assert motion(refused, refused, refused) is Motion.IDLE
    assert motion(refused, refused, refused, runs_after=9) is Motion.BUSY
    assert motion(LOOK, replace(LOOK, state=ProcessState.GONE)) is Motion.GONE
