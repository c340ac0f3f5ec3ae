"""Ranks of different programs: when numbers decide nothing between them, and when they still do."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, GroupView, Op, OpView, RankView
from ncclwatch_server.judge.theory.histories.habits import outgrows
from ncclwatch_server.judge.theory.histories.programs import run_apart, share_a_group
from tests.unit.server.server_values import view


def at(line: int) -> CallSite:
    return CallSite(file="/u/train.py", line=line, function="step")


def op(seq: int, line: int = 44, **changes: object) -> OpView:
    made = OpView(group="dp", seq=seq, op=Op.ALL_REDUCE, site=at(line), numel=100, dtype="float32", completed=True)
    return replace(made, **changes)  # type: ignore[arg-type]


def rank(number: int, ops: Iterable[OpView], **changes: object) -> RankView:
    return replace(view(number), history=tuple(ops), **changes)  # type: ignore[arg-type]


def apart(one: Iterable[OpView], two: Iterable[OpView], sites: tuple[CallSite, ...] = ()) -> bool:
    """Say whether rank 0 runs another program than ranks 1-2."""
    others = tuple(two)
    return run_apart({0: rank(0, one, sites=sites), 1: rank(1, others), 2: rank(2, others)}, (0,), (1, 2))


def calls(line: int, times: int, **changes: object) -> list[OpView]:
    return [op(seq, line, **changes) for seq in range(1, times + 1)]


def test_who_meets_at_lines_of_its_own_again_and_again_runs_another_program():
    assert apart(calls(10, 3), calls(20, 3))
    assert not apart(calls(10, 2), calls(20, 2)), "too few meetings to tell"


def test_one_line_in_common_makes_one_program():
    assert not apart([*calls(10, 3), op(4, 44)], [*calls(20, 3), op(4, 44)])
    assert not apart(calls(10, 3), calls(20, 3), sites=(at(20),)), "its ring has forgotten that call"


def test_only_collectives_that_are_through_are_meetings():
    assert not apart(calls(10, 3, completed=False), calls(20, 3))
    assert not apart(calls(10, 3, op=Op.SEND), calls(20, 3, op=Op.RECV))
    assert not apart(calls(10, 3, group="tp"), calls(20, 3)), "they have not met"


def test_ranks_that_nobody_has_seen_run_no_program():
    views = {0: rank(0, calls(10, 3))}
    assert not run_apart(views, (0,), (7,))
    assert not run_apart(views, (7,), (0,))


def group(name: str, *ranks: int) -> GroupView:
    return GroupView(name=name, desc=name, ranks=ranks, enqueued=3, completed=3, prefix_hash=0)


@pytest.mark.parametrize(
    ("members", "used", "shared"),
    [((0, 1), "eval", True), ((0, 1, 5), "eval", True), ((0, 1, 2), "eval", False), ((0,), "eval", False),
     ((0, 1), "other", False)],
)  # fmt: skip
def test_a_group_without_the_others_in_which_calls_were_made(members: tuple[int, ...], used: str, shared: bool):
    groups = (group("dp", 0, 1, 2), group("eval", *members))
    views = {number: rank(number, [op(1), op(1, 12, group=used)], groups=groups) for number in (0, 1)}
    assert share_a_group(views, (0, 1), (2,)) is shared


@pytest.mark.parametrize(
    ("earlier", "grew"),
    [([op(1, numel=64), op(2, numel=32)], True), ([op(1, numel=64), op(2, numel=128)], False), ([op(1)], False),
     ([], False), ([op(1, numel=64, dtype="int8")], False), ([op(1, 50, numel=64)], False)],
)  # fmt: skip
def test_a_size_that_is_larger_than_any_before_and_all_else_is_the_same(earlier: list[OpView], grew: bool):
    assert outgrows(rank(0, [*earlier, op(9)]), op(9)) is grew
