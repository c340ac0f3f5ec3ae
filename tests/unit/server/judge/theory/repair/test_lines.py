"""Two lines at which ranks meet by design are one call in two branches."""

from collections.abc import Sequence
from dataclasses import replace

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch_server.judge.theory.repair.findings import find
from ncclwatch_server.judge.theory.repair.lines import one_of_two, place_of
from ncclwatch_server.judge.theory.repair.tapes import Call, Tapes, write

GROUPS = {"g": (0, 1, 2, 3)}


def call(line: int, op: Op = Op.ALL_REDUCE, **changes: object) -> Call:
    site = CallSite(file="train.py", line=line, function="f")
    return Call(**({"group": "g", "op": op, "site": site} | changes))  # type: ignore[arg-type]


IF, ELSE, A, B = call(1, Op.BROADCAST, peer=0), call(2, Op.BROADCAST, peer=0), call(3), call(4, numel=9)


def tapes(*calls: Sequence[Call]) -> Tapes:
    return write(GROUPS, dict(enumerate(calls)), {})


def test_lines_at_which_ranks_met_twice_are_one() -> None:
    found = one_of_two(tapes([IF, B, IF], [ELSE, A, ELSE], [ELSE, A, ELSE], []))
    assert found == {place_of(ELSE): place_of(IF)}


def test_one_meeting_is_enough_where_ranks_then_go_on_in_one_line() -> None:
    assert one_of_two(tapes([IF, A], [ELSE, A], [], []))
    assert not one_of_two(tapes([IF], [ELSE], [], []))


def test_lines_that_one_rank_uses_both_are_two() -> None:
    assert not one_of_two(tapes([IF, A, ELSE], [ELSE, A, ELSE], [], []))


def test_calls_with_other_arguments_are_no_branches() -> None:
    assert not one_of_two(tapes([A, A, A], [B, B, B], [], []))


def test_rows_that_begin_at_several_numbers_are_compared_number_by_number() -> None:
    whole = tapes([A, IF, A], [A, ELSE, A], [], [])
    tape = whole.by_rank[1]
    late = replace(tape, calls=tape.calls[1:], seqs=tape.seqs[1:], stop=1)
    assert one_of_two(replace(whole, by_rank={**whole.by_rank, 1: late})) == one_of_two(whole) != {}


def test_the_first_rank_is_not_suspected_for_a_branch_of_its_own() -> None:
    first, others = [IF, A, B] * 3, [ELSE, A, B] * 3
    finding = find(tapes([*first, IF, A], [*others, ELSE, A], [*others, ELSE, A], [*others, ELSE, B]))
    assert [each.rank for each in finding.suspects] == [3]
    assert finding.certain
