"""Histories become tapes, and a cut through them leaves no operation under way."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge.theory.repair.cuts import Counts, cut, first_cut
from ncclwatch_server.judge.theory.repair.replay import Script, Stage, play
from ncclwatch_server.judge.theory.repair.tapes import Call, End, Tapes, read, write
from ncclwatch_server.judge.theory.waits.rank_standing import standings
from tests.scenarios.texts import situation
from tests.spmd import views
from tests.spmd.check import carried_out, draw, settled_s
from tests.spmd.views import Sight

GROUPS = {"w": (0, 1, 2), "p": (0, 1), "q": (1, 2)}
W, P, Q = (Call(group=name, op=Op.BARRIER) for name in "wpq")


def tapes(*calls: Sequence[Call]) -> Tapes:
    return write(GROUPS, dict(enumerate(calls)), {})


def cut_at(found: Tapes, **at_most: int) -> dict[int, int] | None:
    limits = {int(name[1:]): index for name, index in at_most.items()}
    where = cut(Counts(found), limits)
    return dict(where) if where is not None else None


def test_equal_calls_of_two_ranks_have_one_number() -> None:
    found = tapes([W, P], [W, P, Q], [W, Q])
    assert [found.by_rank[rank].calls for rank in range(3)] == [(0, 1), (0, 1, 2), (0, 2)]


def test_a_tape_counts_each_group_and_each_direction_of_a_pair_apart() -> None:
    there, back = Call(group="w", op=Op.SEND, peer=1), Call(group="w", op=Op.RECV, peer=1)
    assert tapes([W, there, W, back, there]).by_rank[0].seqs == (1, 1, 2, 1, 2)


def test_a_cut_leaves_out_what_only_some_members_have_issued() -> None:
    assert cut_at(tapes([W, P, W], [W, P, Q], [W, Q])) == {0: 2, 1: 3, 2: 2}


def test_a_cut_before_a_call_leaves_out_all_that_came_after_it_anywhere() -> None:
    assert cut_at(tapes([W, P, W], [W, P, Q, W], [W, Q, W]), r0=1) == {0: 1, 1: 1, 2: 1}


def test_a_cut_keeps_what_did_not_depend_on_a_call() -> None:
    assert cut_at(tapes([W, P], [W, Q, P], [W, Q]), r0=1) == {0: 1, 1: 2, 2: 2}


def test_a_message_is_received_after_it_was_sent() -> None:
    there, back = Call(group="p", op=Op.SEND, peer=1), Call(group="p", op=Op.RECV, peer=0)
    assert cut_at(tapes([P, there, W], [P, back, W], [W]), r0=1) == {0: 1, 1: 1, 2: 0}


def test_there_is_no_cut_where_a_history_begins_later() -> None:
    found = write(GROUPS, {0: [P, P], 1: [P, P]}, {})
    late = replace(found.by_rank[1], seqs=(5, 6))
    assert cut(Counts(replace(found, by_rank={0: found.by_rank[0], 1: late})), {}) is None


def test_tapes_that_begin_at_several_points_are_cut_where_all_have_issued_as_many() -> None:
    found = write(GROUPS, {0: [W, P, W], 1: [W, P, W, Q], 2: [W, W, Q]}, {})
    late = replace(found.by_rank[1], calls=found.by_rank[1].calls[2:], seqs=(2, 1), stop=1, lost={("p", -1, -1): 1})
    start = first_cut(Counts(replace(found, by_rank={**found.by_rank, 1: late})))
    assert start == {0: 2, 1: 0, 2: 1}


def test_there_is_no_first_cut_where_a_member_stands_before_it() -> None:
    found = write(GROUPS, {0: [P], 1: [P, P, P], 2: []}, {})
    late = replace(found.by_rank[1], calls=found.by_rank[1].calls[2:], seqs=(3,), stop=0)
    assert first_cut(Counts(replace(found, by_rank={**found.by_rank, 1: late}))) is None


@pytest.mark.parametrize("seed", [3, 11])
def test_calls_that_a_ring_holds_no_more_are_counted(seed: int) -> None:
    run = carried_out(draw(seed))
    whole, cut_short = (
        read(standings(views.snapshot(run, Sight(settled_s(run), history=history))))
        for history in ((), (1,) * run.program.world)
    )
    for rank, tape in cut_short.by_rank.items():
        channels = [whole.calls[number].channel(rank) for number in whole.by_rank[rank].calls]
        assert tape.lost == {each: channels.count(each) for each in set(channels) if each != channels[-1]}


@pytest.mark.parametrize(("used", "unseen"), [("dp", set()), ("all", {2})])
def test_who_is_not_seen_matters_only_as_a_member_of_a_group_that_is_used(used: str, unseen: set[int]) -> None:
    given = f"world 3\ngroup all 0-2\ngroup dp 0-1\nunseen 2\nhistory 0-1 {used}#1-2 all_reduce train.py:1"
    assert read(standings(situation(given).snapshot())).unseen == unseen


def test_the_end_of_a_rank_is_read_from_its_standing() -> None:
    ends = set()
    for seed in range(1, 120):
        run = carried_out(draw(seed))
        found = read(standings(views.snapshot(run, Sight(settled_s(run)))))
        ends |= {tape.end for tape in found.by_rank.values()}
    assert ends == {End.BLOCKED, End.STANDS, End.GONE, End.FAILED, End.ELSEWHERE}


@pytest.mark.parametrize(
    ("destroyed", "end"), [("destroyed 1 dp", End.STANDS), ("destroyed 1 dp\ndestroyed 1 all", End.GONE)]
)
def test_a_rank_has_left_once_it_has_destroyed_all_of_its_groups(destroyed: str, end: End) -> None:
    given = "world 2\ngroup all 0-1\ngroup dp 0-1\nhistory 0-1 all#1-2 all_reduce train.py:1\n" + destroyed
    given += "\nat 1 train.py:90\nin 0 all#3 barrier train.py:7 for 4"
    assert read(standings(situation(given).snapshot())).by_rank[1].end is end


def test_a_replay_from_any_cut_reaches_the_state_that_was_observed() -> None:
    for seed in range(1, 300):
        run = carried_out(draw(seed))
        # Who waits for what was issued asynchronously, and when, is not recorded; on a device all is.
        if run.program.device or any(step.is_async for steps in run.steps for step in steps):
            continue
        found = read(standings(views.snapshot(run, Sight(settled_s(run)))))
        for share in (0.0, 0.5, 0.8):
            where = cut_at(found, **{f"r{rank}": int(len(t.calls) * share) for rank, t in found.by_rank.items()})
            assert where is not None
            scripts = [Script(tape.calls[where[rank] :], tape.end) for rank, tape in found.by_rank.items()]
            ways = [play(Stage(found), scripts, eager=eager).at for eager in (True, False)]
            wanted = [tape.stop - where[rank] for rank, tape in found.by_rank.items()]
            assert wanted in [list(way) for way in ways], f"seed {seed}"
