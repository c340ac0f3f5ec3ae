"""When nodes are asked, what the judge gets to see, and which stacks belong to a verdict."""

import gc
from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import ChildStack, Ending, GroupView, RankView, StackDump, StackFrame
from ncclwatch.contract.model.testimony import CommRank, Communicator, Testimony
from ncclwatch_server import limits
from ncclwatch_server.evidence.inspection import Inspection, with_members
from ncclwatch_server.evidence.stack_collection import CHILD, NATIVE, Gathering, failures, merge
from ncclwatch_server.evidence.view_room import ViewRoom
from ncclwatch_server.state.suspicion import Suspicion
from tests.unit.server.server_values import VERDICT, view

USER = StackFrame(function="train", file="/u/train.py", line=3)
TORCH = StackFrame(function="all_reduce", file="/v/site-packages/torch/distributed/c10d.py", line=9)
QUEUE = StackFrame(function="get", file="/usr/lib/python3.11/queue.py", line=1)
NATIVE_FRAME = StackFrame(function="pthread_cond_wait", file="libc.so.6", line=0)
OURS = StackFrame(function="beat", file="/v/site-packages/ncclwatch/rank/pulse.py", line=2)


def test_questions_are_complete_when_all_have_answered_or_patience_ends() -> None:
    inspection = Inspection()
    inspection.ask([(1, 5), (2, 1)], 10.0)
    inspection.receive_views([view(0)], (1, 5), 10.1)
    assert not inspection.complete(11.49)
    assert inspection.complete(11.5)
    inspection.receive_views([view(1)], (2, 1), 10.2)
    assert inspection.complete(10.2)


def test_a_connection_that_breaks_is_not_waited_for() -> None:
    inspection = Inspection()
    inspection.ask([(1, 5), (2, 1)], 10.0)
    inspection.receive_views([], (1, 5), 10.1)
    inspection.lose(2)
    assert inspection.complete(10.1)


def test_unasked_views_are_no_answer() -> None:
    inspection = Inspection()
    inspection.ask([(1, 5)], 10.0)
    inspection.receive_views([view(0)], (1, 0), 10.1)
    assert not inspection.complete(10.1)


@pytest.mark.parametrize(
    ("unchanged_s", "pause_s"),
    [(0, 0.6), (14.9, 0.6), (15, 1.0), (119, 1.0), (120, 2.0), (599, 2.0), (600, 5.0), (9999, 5.0)],
)
def test_the_longer_nothing_changes_the_longer_nodes_are_left_alone(unchanged_s: float, pause_s: float) -> None:
    inspection = Inspection()
    inspection.ask([], 0.0)
    inspection.finish(unchanged_s, changed=False)
    assert not inspection.due(unchanged_s + pause_s - 0.01)
    assert inspection.due(unchanged_s + pause_s)


@pytest.mark.parametrize(("unchanged_s", "pause_s"), [(0, 0.6), (15, 1.0), (120, 1.0), (9999, 1.0)])
def test_what_is_said_of_ranks_that_work_is_looked_at_with_each_tick(unchanged_s: float, pause_s: float) -> None:
    inspection = Inspection()
    inspection.ask([], 0.0)
    inspection.finish(unchanged_s, changed=False, moving=True)
    assert not inspection.due(unchanged_s + pause_s - 0.01)
    assert inspection.due(unchanged_s + pause_s)


def test_news_end_the_pause() -> None:
    inspection = Inspection()
    inspection.ask([], 0.0)
    inspection.finish(1000.0, changed=False)
    inspection.hurry(1000.5)
    assert inspection.due(1000.5)
    inspection.ask([], 1000.5)
    inspection.finish(1001.0, changed=False)
    assert inspection.due(1001.6)


def test_the_snapshot_holds_the_age_of_all_news() -> None:
    inspection = Inspection()
    inspection.receive_views([view(0)], (1, 0), 10.0)
    inspection.receive_views([view(1)], (1, 0), 12.0)
    suspicion = Suspicion(waiting=(0,), silent={1: 7.0}, longest_wait_s=300.0)
    snapshot = inspection.snapshot("job", 4, suspicion, {}, 20.0, 13.0)
    assert {rank: seen.news_age_s for rank, seen in snapshot.ranks.items()} == {0: 3.0, 1: 1.0}
    assert snapshot.silent == {1: 7.0}
    assert snapshot.absent_s == 20.0


def test_a_view_was_taken_between_its_question_and_its_answer_and_one_that_came_unasked_some_time_before() -> None:
    inspection = Inspection()
    inspection.ask([(1, 5), (2, 1)], 10.0)
    inspection.receive_views([view(0)], (1, 5), 10.2)
    inspection.receive_views([view(1)], (1, 4), 10.2)
    snapshot = inspection.snapshot("job", 4, Suspicion(), {}, 20.0, 11.0)
    assert snapshot.ranks[0].taken_s == pytest.approx(0.2)
    assert snapshot.ranks[1].taken_s == limits.SILENT_S


def test_how_a_rank_ended_is_known_once_it_was_told() -> None:
    inspection = Inspection()
    inspection.receive_views([view(0), view(1, Ending(kind="exited"))], (1, 0), 1.0)
    assert [inspection.has_ending(rank) for rank in (0, 1, 2)] == [False, True, False]


def test_views_are_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VIEWS_MAX", 2)
    inspection = Inspection()
    for rank in range(3):
        inspection.receive_views([view(rank)], (1, 0), float(rank))
    assert sorted(inspection.snapshot("j", 4, Suspicion(), {}, 0.0, 5.0).ranks) == [1, 2]
    assert inspection.dropped == 1


def test_equal_stacks_are_merged_and_main_threads_come_first() -> None:
    dumps = {
        rank: StackDump(
            rank=rank,
            threads=(("Thread-1", (QUEUE,)), ("saver", (TORCH, USER)), ("MainThread", (TORCH, USER))),
        )
        for rank in (0, 2, 3)
    }
    dumps[1] = StackDump(rank=1, threads=(("MainThread", (USER,)),))
    merged = merge(dumps, VERDICT)
    assert [(stack.ranks, stack.thread) for stack in merged] == [
        ((1,), "MainThread"), ((0, 2, 3), "MainThread"), ((0, 2, 3), "saver"), ((0, 2, 3), "Thread-1"),
    ]  # fmt: skip


def test_our_own_threads_and_ranks_that_are_not_concerned_are_left_out() -> None:
    threads = (("ncclwatch-pulse", (QUEUE,)), ("Thread-9", (OURS,)), ("MainThread", (OURS, USER)))
    dumps = {1: StackDump(rank=1, threads=threads), 9: StackDump(rank=9, threads=threads)}
    assert [(s.ranks, s.thread) for s in merge(dumps, VERDICT)] == [((1,), "MainThread")]


def test_a_refused_stack_is_told_with_its_reason() -> None:
    assert failures({1: StackDump(rank=1, failure="ptrace is refused")}) == ((1, "ptrace is refused"),)


def test_an_opening_waits_for_stacks_but_not_for_long() -> None:
    gathering = Gathering(started_at=10.0, verdicts=[VERDICT], judged_at=10.0, questions={(1, 1), (2, 1)})
    assert not gathering.ready(11.4)
    assert gathering.ready(11.5)
    assert not gathering.done(15.9)
    assert gathering.done(16.0)
    gathering.receive_stacks([StackDump(rank=0)], (1, 1))
    gathering.lose(2)
    assert gathering.ready(10.1)
    assert gathering.done(10.1)


def test_testimonies_are_waited_for_and_the_newest_of_a_rank_counts() -> None:
    gathering = Gathering(started_at=10.0, verdicts=[VERDICT], judged_at=10.0, questions={(1, 1), (2, 1)})
    comm = Communicator(size=2, ranks=(CommRank(rank=0, pid=7, launched=3),))
    gathering.receive_testimonies([Testimony(rank=0, failure="it has no worker server")], [comm], (1, 1))
    assert not gathering.ready(10.1)
    gathering.receive_testimonies([Testimony(rank=0, seen={"0": 4})], [comm], (2, 1))
    assert gathering.ready(10.1)
    assert gathering.fresh
    assert gathering.testimonies == {0: Testimony(rank=0, seen={"0": 4})}
    assert gathering.communicators == (comm,)


def test_testimonies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STACK_RANKS_MAX", 2)
    monkeypatch.setattr(limits, "COMMUNICATORS_MAX", 1)
    gathering = Gathering(started_at=10.0, verdicts=[VERDICT], judged_at=10.0)
    gathering.receive_testimonies(
        [Testimony(rank=rank) for rank in range(5)], [Communicator(size=size, ranks=()) for size in (2, 3)], (1, 1)
    )
    assert (sorted(gathering.testimonies), len(gathering.communicators)) == ([0, 1], 1)


def test_the_second_round_begins_when_the_incidents_are_open_and_is_asked_once() -> None:
    gathering = Gathering(started_at=10.0, verdicts=[VERDICT], judged_at=10.0, then=(5,), deeply=(1,))
    assert gathering.next_round(10.5) == ((), ())
    gathering.opened = True
    assert not gathering.done(10.5)
    assert gathering.next_round(10.5) == ((5,), (1,))
    gathering.questions.add((1, 2))
    assert gathering.next_round(10.6) == ((), ())
    assert not gathering.done(30.4)
    assert gathering.done(30.5)


def test_a_second_look_that_failed_takes_nothing_away() -> None:
    gathering = Gathering(started_at=10.0, verdicts=[VERDICT], judged_at=10.0)
    first = StackDump(rank=1, threads=(("MainThread", (USER,)),))
    gathering.receive_stacks([first], (1, 1))
    gathering.receive_stacks([StackDump(rank=1, failure="gone")], (1, 2))
    assert gathering.dumps == {1: first}
    deeper = StackDump(rank=1, threads=first.threads, native=(NATIVE_FRAME, USER))
    gathering.receive_stacks([deeper], (1, 3))
    assert gathering.dumps == {1: deeper}


def test_what_a_closer_look_at_a_suspect_showed_comes_after_the_main_threads() -> None:
    main = ("MainThread", (QUEUE, USER))
    children = (
        ChildStack(pid=7, frames=(USER,)),
        ChildStack(pid=8, frames=(QUEUE,)),
        ChildStack(pid=9, frames=(QUEUE,)),
    )
    dumps = {
        0: StackDump(rank=0, threads=(main, ("saver", (TORCH, USER)))),
        1: StackDump(rank=1, threads=(main,), native=(NATIVE_FRAME, USER), children=children),
    }
    assert [(s.ranks, s.thread) for s in merge(dumps, VERDICT)] == [
        ((0, 1), "MainThread"), ((1,), NATIVE), ((1,), f"{CHILD} 7"), ((0,), "saver"), ((1,), f"{CHILD} 8,9"),
    ]  # fmt: skip


def test_a_closer_look_at_a_victim_is_not_shown() -> None:
    dump = StackDump(rank=0, threads=(("MainThread", (USER,)),), native=(NATIVE_FRAME,))
    assert [stack.thread for stack in merge({0: dump}, VERDICT)] == ["MainThread"]


def test_views_of_ranks_that_are_not_asked_any_more_are_forgotten_unless_they_tell_an_end() -> None:
    inspection = Inspection()
    inspection.receive_views([view(0), view(1), view(2, Ending(kind="exited", exit_code=0))], (1, 5), 10.0)
    inspection.focus([0, 3])
    found = inspection.snapshot("job", 4, Suspicion(), {}, 60.0, 11.0)
    assert set(found.ranks) == {0, 2}


def test_members_are_expanded_when_the_judge_looks_and_only_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "MEMBERS_MAX", 100)
    world = GroupView(name="0", desc="", ranks=(), runs=((0, 1, 60),), enqueued=1, completed=1, prefix_hash=7)
    half = replace(world, name="1", runs=((0, 2, 30),))
    more = replace(world, name="2", runs=((1, 1, 30),))
    inspection = Inspection()
    inspection.receive_views([replace(view(rank), groups=(world, half, more)) for rank in (0, 1)], (0, 0), 1.0)
    snapshot = inspection.snapshot("job", 60, Suspicion(), {}, 60.0, 2.0)
    first, second = with_members(snapshot).ranks.values()
    assert [len(group.ranks) for group in first.groups] == [60, 30, 0]
    assert first.groups[2].unnamed == 30
    assert all(one.ranks is other.ranks for one, other in zip(first.groups, second.groups, strict=True))
    kept = inspection.view(0)
    assert kept is not None
    assert kept.groups[0].ranks == ()


def heavy(rank: int, ended: str = "") -> RankView:
    ending = Ending(kind=ended) if ended else None
    return replace(view(rank), weight=40, ending=ending)


def kept(inspection: Inspection) -> list[int]:
    return [rank for rank in range(12) if inspection.view(rank) is not None]


def test_a_connection_whose_views_take_too_much_loses_its_oldest_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "VIEWS_BYTES_PER_LINE_MAX", 100)
    inspection = Inspection()
    inspection.receive_views([heavy(9)], (2, 0), 0.5)
    for at, rank in enumerate((0, 1, 2)):
        inspection.receive_views([heavy(rank)], (1, 0), 1.0 + at)
    assert (kept(inspection), inspection.weight, inspection.dropped) == ([1, 2, 9], 120, 1)
    inspection.receive_views([heavy(2)], (1, 0), 9.0)  # a newer view of a rank takes the place of the older one
    assert (kept(inspection), inspection.weight) == ([1, 2, 9], 120)
    inspection.focus([2])
    assert (kept(inspection), inspection.weight) == ([2], 40)


def test_of_a_job_with_too_many_views_those_of_ranks_that_ended_first_stay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "VIEWS_BYTES_PER_JOB_MAX", 100)
    inspection = Inspection()
    inspection.receive_views([heavy(0, "crashed")], (1, 0), 1.0)
    inspection.receive_views([heavy(1)], (2, 0), 2.0)
    inspection.receive_views([heavy(2, "crashed")], (3, 0), 3.0)
    assert kept(inspection) == [0, 2]
    inspection.receive_views([heavy(3, "crashed")], (4, 0), 4.0)
    assert kept(inspection) == [0, 2]


def test_the_job_with_most_makes_room_where_all_jobs_have_too_much(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "VIEWS_BYTES_MAX", 150)
    room = ViewRoom()
    big, small = Inspection(room), Inspection(room)
    for rank in range(3):
        big.receive_views([heavy(rank)], (1, 0), float(rank))
    small.receive_views([heavy(7)], (2, 0), 9.0)
    assert (kept(big), kept(small), room.kept) == ([1, 2], [7], 120)
    del big  # its job is over
    gc.collect()
    assert room.kept == 40
