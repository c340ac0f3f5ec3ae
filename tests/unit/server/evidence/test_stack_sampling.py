"""Whose stacks are asked for, and in which order."""

from dataclasses import replace

from ncclwatch.contract.model.rank import CallSite, Op, RankView, ThreadView, WaitKind, WaitView
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server import limits
from ncclwatch_server.evidence.stack_sampling import plan
from tests.unit.server.server_values import VERDICT, verdict, view


def waiting(rank: int, line: int) -> RankView:
    site = CallSite(file="/u/train.py", line=line, function="train")
    wait = WaitView(kind=WaitKind.COLLECTIVE, age_s=1.0, op=Op.ALL_REDUCE, site=site)
    return replace(view(rank), threads=(ThreadView(tid=1, main=True, issued=1, wait=wait),))


def test_in_a_small_job_all_are_asked_at_once_the_suspects_first() -> None:
    found = plan([VERDICT], {})
    assert (found.first, found.then, found.deeply) == ((1, 0, 2, 3), (), (1,))


def test_each_class_is_asked_before_a_second_of_any_and_the_smallest_first() -> None:
    views = {rank: waiting(rank, line=20 if rank == 77 else 10) for rank in range(100)}
    found = plan([verdict(culprits=(99,), victims=tuple(range(99)))], views)
    assert found.first[:4] == (99, 77, 0, 1)
    assert len(found.first) == limits.STACK_FIRST_MAX
    assert len(found.first + found.then) == limits.STACK_RANKS_MAX
    assert not set(found.first) & set(found.then)


def test_where_all_are_suspects_others_still_get_a_turn() -> None:
    found = plan(
        [verdict(culprits=tuple(range(100)), victims=(200, 201))], {200: waiting(200, 10), 201: waiting(201, 20)}
    )
    assert {200, 201} < set(found.first)
    assert len(found.first) == limits.STACK_FIRST_MAX
    assert found.deeply == (0, 1, 2, 3)


def test_of_a_rank_that_works_no_native_frames_are_asked() -> None:
    assert plan([verdict(certainty=Certainty.LATE)], {}).deeply == ()


def test_ranks_nobody_has_seen_are_one_class() -> None:
    views = {0: waiting(0, 10)}
    assert plan([verdict(culprits=(9,), victims=(0, 1, 2))], views).first == (9, 0, 1, 2)
