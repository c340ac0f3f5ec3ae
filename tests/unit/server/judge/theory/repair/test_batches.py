"""A rank that drew another number of batches than all others left its loop early, or stayed in it for too long."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch_server.judge.theory.repair.batches import odd_ranks
from ncclwatch_server.judge.theory.repair.findings import Reference, find
from ncclwatch_server.judge.theory.repair.peers import Roles
from ncclwatch_server.judge.theory.repair.tapes import Call, Drawn, End, Tapes, write

LOADER = CallSite(file="train.py", line=5, function="f")
GROUPS = {"w": (0, 1, 2), "a": (0, 1)}
A, W = (Call(group=name, op=Op.BARRIER, site=replace(LOADER, line=line)) for name, line in (("a", 6), ("w", 9)))


def drawn(batches: int, *, ended: bool = False, passes: int = 1) -> tuple[Drawn, ...]:
    return (Drawn(LOADER, passes, batches, ended),)


def tapes(
    calls: Mapping[int, Sequence[Call]],
    batches: Mapping[int, tuple[int, ...]] | None = None,
    loaders: Mapping[int, tuple[Drawn, ...]] | None = None,
) -> Tapes:
    found = write(GROUPS, calls, dict.fromkeys(calls, End.BLOCKED))
    by_rank = {
        rank: replace(tape, batches=(batches or {}).get(rank, ()), drawn=(loaders or {}).get(rank, ()))
        for rank, tape in found.by_rank.items()
    }
    return replace(found, by_rank=by_rank)


def odd(found: Tapes) -> frozenset[int]:
    return odd_ranks(Roles(found), {})


def test_a_rank_that_made_a_call_after_fewer_batches_than_the_others_is_odd() -> None:
    assert odd(tapes({0: [W], 1: [W], 2: [W]}, {0: (3,), 1: (4,), 2: (4,)})) == {0}


def test_of_two_ranks_none_is_odd() -> None:
    assert odd(tapes({0: [A], 1: [A], 2: []}, {0: (3,), 1: (4,)})) == frozenset()


@pytest.mark.parametrize(
    ("loaders", "ranks"),
    [
        ({0: drawn(3, ended=True), 1: drawn(4), 2: drawn(4)}, {0}),
        ({0: drawn(3, ended=True), 1: drawn(3), 2: drawn(4)}, set()),
        ({0: drawn(5), 1: drawn(4, ended=True), 2: drawn(4, ended=True)}, {0}),
        ({0: drawn(4), 1: drawn(4, ended=True), 2: drawn(4, ended=True)}, set()),
        ({0: drawn(3, ended=True), 1: drawn(4, ended=True), 2: drawn(4, ended=True)}, {0}),
        ({0: drawn(3, ended=True), 1: drawn(4, passes=2), 2: drawn(4, passes=2)}, set()),
    ],
    ids=["ended early", "others may end, too", "goes on", "is on its last", "all ended", "another pass"],
)
def test_a_rank_whose_loop_is_not_as_long_as_those_of_the_others_is_odd(
    loaders: Mapping[int, tuple[Drawn, ...]], ranks: set[int]
) -> None:
    assert odd(tapes({0: [W], 1: [W], 2: [W]}, None, loaders)) == ranks


def test_batches_decide_between_ranks_that_nothing_else_tells_apart() -> None:
    calls = {0: [A, A, W], 1: [A, A, A], 2: [W]}
    finding = find(tapes(calls, {0: (1, 2, 2), 1: (1, 2, 3), 2: (2,)}, {1: drawn(3), 2: drawn(2, ended=True)}))
    assert [each.rank for each in finding.suspects] == [0, 1]
    loaders = {0: drawn(2, ended=True), 1: drawn(3), 2: drawn(3, ended=True)}
    finding = find(tapes(calls, {0: (1, 2, 2), 1: (1, 2, 3), 2: (3,)}, loaders))
    assert [(each.rank, each.reference) for each in finding.suspects] == [(0, Reference.BATCHES)]
