"""Who is named is named with the line at which it waits, with what itself does, and with the advice that fits it."""

from dataclasses import replace

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.rank import CallSite, Ending, StackDump, StackFrame
from ncclwatch.contract.model.verdict import Cause, Verdict
from ncclwatch_server.judge import judge
from ncclwatch_server.judge.rules.frames.standstill import ADVICE_GIL
from ncclwatch_server.judge.rules.straggler import ADVICE, ADVICE_LOOP
from tests.scenarios.texts import situation

WAITED_AT = CallSite(file="/home/user/train.py", line=99, function="wait_for_all")


def told(text: str) -> Verdict:
    (found,) = judge(situation(text).snapshot())
    return found


def waiting_at(snapshot: JobSnapshot, rank: int, site: CallSite) -> JobSnapshot:
    """Return a snapshot in which a rank waits at a line that is not that of its call, as after async_op=True."""
    view = snapshot.ranks[rank]
    (thread,) = view.threads
    assert thread.wait is not None
    thread = replace(thread, wait=replace(thread.wait, site=site))
    return replace(snapshot, ranks={**snapshot.ranks, rank: replace(view, threads=(thread,))})


def test_a_group_is_titled_as_the_sentences_call_it() -> None:
    found = told("""
world 3
group 70 0-2 as mp
history 0-2 70#1-20 all_reduce train.py:12:main
in 0,1 70#21 all_reduce train.py:12:main for 4
in 2 70#21 barrier train.py:20:main for 4
""")
    assert (found.group, found.group_title) == ("70", "group mp")
    assert found.first_divergence is not None
    assert found.first_divergence.group_title == "group mp"
    assert "of group mp" in found.explanation


def test_a_rank_that_is_alone_in_a_call_is_named_with_the_line_at_which_it_waits() -> None:
    snapshot = situation("""
world 3
group dp 0-2
history 0-2 dp#1-20 all_reduce train.py:12:main
destroyed 1-2 dp
at 1-2 train.py:90:evaluate
in 0 dp#21 all_gather train.py:7:save for 4
source 0 train.py:7:save if "if rank == 0"
""").snapshot()
    (found,) = judge(waiting_at(snapshot, 0, WAITED_AT))
    assert found.cause is Cause.RANK_CONDITIONAL_COLLECTIVE
    assert found.summary.startswith("rank 0 is in all_gather at train.py:99 under `if rank == 0`")
    assert [each.call_site for each in found.culprits] == [WAITED_AT]


def test_who_destroyed_a_group_is_named_with_the_line_at_which_it_now_waits() -> None:
    snapshot = situation("""
world 3
group 0 0-2
history 0-2 0#1-6 all_reduce train.py:44
destroyed 0 0
init 0 library.py:9:setup for 5
in 1-2 0#7 all_reduce train.py:44 for 4
""").snapshot()
    (found,) = judge(waiting_at(snapshot, 0, WAITED_AT))
    assert "is now in init_process_group at train.py:99" in found.summary
    assert [each.call_site for each in found.culprits] == [WAITED_AT]


def test_each_of_two_late_ranks_is_told_with_what_itself_does() -> None:
    found = told("""
world 4
group dp 0-3
at 0 save.py:30:save_checkpoint still 0
at 2 data.py:12:shuffle still 3
in 1,3 dp#4 barrier train.py:60 for 20
""")
    assert found.cause is Cause.STRAGGLER
    assert [(each.rank, each.doing) for each in found.culprits] == [(0, "working"), (2, "no activity for 3.0 s")]


def test_of_a_rank_that_computes_in_a_loop_for_long_the_loop_is_to_be_looked_at() -> None:
    late = """
world 3
group dp 0-2
history 0-2 dp#1-6 all_reduce train.py:44 ago 12.5
source 1 train.py:30:settle loop "while state != want" lines 29-31
at 1 train.py:30:settle still 0 io 99 cpu 0
"""
    assert told(late + "in 0,2 dp#7 all_reduce train.py:44 for 12").advice == ADVICE_LOOP
    assert told(late + "in 0,2 dp#7 all_reduce train.py:44 for 2").advice == ADVICE


def test_a_rank_that_stands_still_is_told_with_what_it_stands_in() -> None:
    found = told("""
world 2
group dp 0-1
disk 1 train.py:70 for 6
in 0 dp#4 barrier train.py:60 for 7
""")
    assert [each.doing for each in found.culprits] == ["is in uninterruptible sleep (state D)"]


HELD = """
world 2
group dp 0-1
in 1 dp#4 all_reduce train.py:44 for 40
disk 0 train.py:40:load for 39
gil 0 for 39
"""


def test_a_lost_pulse_is_the_gils_only_where_the_kernel_does_not_hold_the_rank() -> None:
    held = told(HELD)
    assert "uninterruptible sleep" in held.summary
    assert ADVICE_GIL not in held.advice
    native = told(HELD.replace("disk 0 train.py:40:load for 39", "at 0 train.py:40:load still 39"))
    assert "native code holds the GIL" in native.summary
    assert native.advice == ADVICE_GIL


LINGERS = """
world 3
group dp 0-2
history 0-2 dp#1-20 all_reduce train.py:12:main
at 2 train.py:30:main still 70
standing 2 "_shutdown /usr/lib/python3.11/threading.py:1583"
"""


def lingers(endings: dict[int, Ending], dump: StackDump | None = None) -> Verdict:
    """Return what is said of rank 2, which is left when the others have ended so."""
    state = situation(LINGERS)
    for rank, ending in endings.items():
        state.run(f"ended {rank} exit 0 ago 80")
        state.ranks[rank] = replace(state.ranks[rank], ending=ending)
    snapshot = state.snapshot()
    (found,) = judge(replace(snapshot, stacks={2: dump} if dump is not None else {}))
    return found


def test_of_ranks_that_have_ended_a_code_is_told_only_where_it_is_known() -> None:
    well = Ending(kind="exited", exit_code=0, age_s=80.0)
    unseen = Ending(kind="exited", age_s=80.0)
    assert "although ranks 0-1 exited with code 0:" in lingers({0: well, 1: well}).summary
    assert "although ranks 0-1 have ended:" in lingers({0: well, 1: unseen}).summary


def test_of_one_rank_that_has_ended_in_a_way_that_nobody_saw_it_is_said_that_it_has() -> None:
    state = situation(LINGERS.replace("world 3", "world 2").replace("0-2", "0-1").replace(" 2 ", " 1 "))
    state.run("ended 0 exit 0 ago 80")
    state.ranks[0] = replace(state.ranks[0], ending=Ending(kind="exited", age_s=80.0))
    (found,) = judge(state.snapshot())
    assert "although rank 0 has ended:" in found.summary


def test_of_the_threads_that_hold_a_program_up_those_of_the_users_code_are_told() -> None:
    library = StackFrame(function="wait", file="/usr/lib/python3.11/threading.py", line=320)
    own = StackFrame(function="upload", file="/home/user/upload.py", line=8)
    dump = StackDump(rank=2, threads=(("MainThread", (library,)), ("Pool-1", (library,)), ("Uploader", (library, own))))
    well = Ending(kind="exited", exit_code=0, age_s=80.0)
    assert "Its other threads: Uploader at upload.py:8 in upload()." in lingers({0: well, 1: well}, dump).explanation
