"""Tapes that begin at different points are cut to one point of the program: after a collective of all ranks."""

from collections.abc import Sequence
from dataclasses import replace

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch_server.judge.theory.repair.cuts import Counts, common_cut, first_cut
from ncclwatch_server.judge.theory.repair.tapes import Call, End, Tapes, write

GROUPS = {"w": (0, 1, 2), "a": (0, 1)}
W, A = (
    Call(group=group, op=Op.ALL_REDUCE, site=CallSite(file="train.py", line=line, function="f"))
    for line, group in enumerate(("w", "a"))
)
STEP: Sequence[Call] = (W, A, A)


def forgotten(*lost: int) -> Tapes:
    """Return three steps of three ranks, one of which is no member of `a`, without so many of their first calls."""
    whole = write(GROUPS, {0: [*STEP * 3], 1: [*STEP * 3], 2: [W] * 3}, dict.fromkeys(range(3), End.STANDS))
    cut = {
        rank: replace(tape, calls=tape.calls[n:], seqs=tape.seqs[n:], stop=tape.stop - n)
        for (rank, tape), n in zip(whole.by_rank.items(), lost, strict=True)
    }
    return replace(whole, by_rank=cut)


def found(tapes: Tapes) -> dict[int, int] | None:
    cut = common_cut(Counts(tapes), dict.fromkeys(tapes.by_rank, 0))
    return dict(cut) if cut is not None else None


def test_all_begin_after_the_first_collective_of_all_that_each_still_has() -> None:
    assert found(forgotten(1, 2, 0)) == {0: 3, 1: 2, 2: 2}


def test_a_collective_before_which_a_rank_forgot_more_is_passed_over() -> None:
    assert found(forgotten(5, 4, 1)) == {0: 2, 1: 3, 2: 2}


def test_where_no_collective_of_all_is_left_there_is_no_such_point() -> None:
    assert found(forgotten(7, 7, 3)) is None


def test_groups_of_some_ranks_are_no_such_point() -> None:
    tapes = forgotten(1, 2, 0)
    assert found(replace(tapes, groups={"w": (0, 1), "a": (0, 1)})) is None


def test_what_a_rank_passes_up_to_the_first_cut_the_other_members_pass_as_well() -> None:
    first, second = (Call(group=group, op=Op.ALL_REDUCE) for group in ("a", "b"))
    calls = {0: [first] * 3, 1: [second, first] * 3, 2: [second] * 3}
    tapes = write({"a": (0, 1), "b": (1, 2)}, calls, dict.fromkeys(calls, End.STANDS))
    lost = tapes.by_rank[0]
    shorter = replace(lost, calls=lost.calls[1:], seqs=lost.seqs[1:], stop=lost.stop - 1)
    cut = first_cut(Counts(replace(tapes, by_rank={**tapes.by_rank, 0: shorter})))
    assert cut == {0: 0, 1: 2, 2: 1}
