"""The rank whose smallest change ends a hang is found, with what it should have done and by which reference."""

from collections.abc import Mapping, Sequence

import pytest

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch_server.judge.theory.repair.edits import Change, Edit
from ncclwatch_server.judge.theory.repair.findings import Finding, Reference, find
from ncclwatch_server.judge.theory.repair.hang import Failure, Hang
from ncclwatch_server.judge.theory.repair.search import _size_of
from ncclwatch_server.judge.theory.repair.tapes import Call, End, write

TWO, THREE = {"g": (0, 1)}, {"g": (0, 1, 2)}


def call(line: int, group: str = "g", op: Op = Op.ALL_REDUCE, **changes: object) -> Call:
    site = CallSite(file="train.py", line=line, function="f")
    return Call(**({"group": group, "op": op, "numel": line, "site": site} | changes))  # type: ignore[arg-type]


A, B, C, D = (call(line) for line in (1, 2, 3, 4))
STEP = [A, B, C]


def found(
    *calls: Sequence[Call],
    groups: Mapping[str, tuple[int, ...]] = THREE,
    ends: Mapping[int, End] | None = None,
    stops: Mapping[int, int] | None = None,
) -> Finding:
    return find(write(groups, dict(enumerate(calls)), ends or {}, stops))


def told(finding: Finding) -> list[tuple[int, Change]]:
    return [(each.rank, each.change) for each in finding.suspects]


def test_a_rank_that_left_a_call_out_is_told_by_its_peers() -> None:
    finding = found([*STEP, A, B], [*STEP, A, B], [*STEP, A, C])
    assert told(finding) == [(2, Change.PUT_IN)]
    assert finding.suspects[0].missing == (B,)
    assert (finding.suspects[0].reference, finding.certain) == (Reference.PEERS, True)


def test_a_rank_that_made_a_call_too_many_is_told_by_its_peers() -> None:
    finding = found([A, B], [A, B], [A, D])
    assert [(each.rank, each.made) for each in finding.suspects] == [(2, (D,))]


def test_of_two_ranks_without_a_past_it_is_one_of_both() -> None:
    finding = found([A, B], [A, C], groups=TWO)
    assert [each.rank for each in finding.suspects] == [0, 1]
    assert not finding.certain


def test_of_two_ranks_the_one_that_broke_its_own_routine_is_told() -> None:
    finding = found([*STEP * 9, A, B], [*STEP * 9, A, C], groups=TWO)
    (suspect,) = finding.suspects
    assert (suspect.rank, suspect.reference, suspect.held) == (1, Reference.PAST, 8)
    assert suspect.missing == (B,)
    assert finding.certain


def test_a_routine_that_held_twice_makes_nobody_certain() -> None:
    finding = found([*STEP * 2, A, B], [*STEP * 2, A, C], groups=TWO)
    assert not finding.certain


@pytest.mark.parametrize("end", [End.STANDS, End.FAILED])
def test_a_rank_that_stands_or_was_ended_is_told_without_a_wrong_call(end: End) -> None:
    finding = found([A, B], [A, B], [A], ends={2: end})
    assert told(finding) == [(2, Change.COME_BACK)]
    assert (finding.suspects[0].reference, finding.certain) == (Reference.STANDING, True)


def test_a_rank_that_left_its_loop_early_and_ended_well_is_told() -> None:
    finding = found([*STEP, A], [*STEP, A], STEP, ends={2: End.GONE})
    assert told(finding) == [(2, Change.COME_BACK)]


def test_a_wrong_call_that_paired_silently_is_found_where_it_was_made() -> None:
    alike = [call(line, numel=1) for line in (1, 2, 3)]
    finding = found(alike * 4, alike * 4, [*alike, *alike[1:], *alike * 2], ends={2: End.GONE})
    assert told(finding) == [(2, Change.PUT_IN)]
    assert finding.suspects[0].at == 3


def test_what_a_rank_did_after_a_wrong_call_is_no_past_of_it() -> None:
    right = [call(line, numel=1) for line in range(1, 9)]
    wrong = [right[0], call(9, numel=1), *right[1:]]
    finding = found(right, right, wrong, ends={0: End.GONE, 1: End.GONE})
    (suspect,) = finding.suspects
    assert (suspect.rank, suspect.at, suspect.visits) == (2, 1, 0)


def test_two_calls_in_the_wrong_order_are_told_as_a_swap() -> None:
    finding = found([A, B], [A, B], [A, C, B], stops={2: 1})
    assert finding.suspects[0].rank == 2
    swapped = found([A, B, C], [A, B, C], [A, C, B], stops={0: 1, 1: 1, 2: 1})
    assert told(swapped) == [(2, Change.SWAP)]


def test_one_call_that_is_missing_supposes_less_than_two_that_are_too_many() -> None:
    hang = Hang(write(TWO, {0: [*STEP, A, B, C], 1: [*STEP, A, B, D]}, {}))
    missing = Edit(rank=0, change=Change.PUT_IN, at=3, put=hang.tapes.by_rank[0].calls[:1])
    surplus = Edit(rank=0, change=Change.LEAVE_OUT, at=3, out=2)
    assert _size_of(hang, missing) < _size_of(hang, surplus)


def test_a_call_with_a_wrong_root_is_told_as_replaced() -> None:
    good, bad = (call(2, op=Op.REDUCE, peer=peer) for peer in (0, 1))
    finding = found([A, good], [A, good], [A, bad])
    assert told(finding) == [(2, Change.REPLACE)]
    assert (finding.suspects[0].made, finding.suspects[0].missing) == ((bad,), (good,))


def test_a_call_in_a_wrong_group_is_told_as_replaced() -> None:
    groups = {"g": (0, 1, 2), "h": (0, 1, 2)}
    finding = found([A, B], [A, B], [A, call(2, "h")], groups=groups)
    assert told(finding) == [(2, Change.REPLACE)]


def test_an_iteration_too_many_is_told() -> None:
    end = [call(9)]
    finding = found([*STEP * 3, *end], [*STEP * 3, *end], STEP * 4, stops={2: 9})
    assert finding.suspects[0].rank == 2
    assert finding.certain


def test_nobody_is_told_where_nobody_waits_for_ever() -> None:
    assert found([A], [A], [A], ends=dict.fromkeys(range(3), End.GONE)).failure is Failure.MOVING


def test_nobody_is_told_where_the_histories_do_not_lead_to_what_was_seen() -> None:
    assert found([A, B], [A, B], [A, B], stops={0: 0, 1: 1, 2: 1}).failure is Failure.INCOMPLETE


def test_two_ranks_that_stand_are_told_together() -> None:
    finding = found([A, B], [A, B], [A], [A], groups={"g": (0, 1, 2, 3)}, ends={2: End.STANDS, 3: End.FAILED})
    assert finding.together == ((2, 3),)
    assert {each.reference for each in finding.suspects} == {Reference.STANDING}


def test_two_ranks_that_stand_are_told_and_not_the_only_one_that_waits_for_them() -> None:
    finding = found([*STEP, A], STEP, STEP, ends={1: End.STANDS, 2: End.STANDS})
    assert finding.together == ((1, 2),)


def test_of_two_ranks_that_stand_only_the_one_is_told_that_is_waited_for() -> None:
    root = call(5, op=Op.BROADCAST, peer=1)
    finding = found([A, root], [A], [A], ends={1: End.STANDS, 2: End.STANDS})
    assert (told(finding), finding.together) == ([(1, Change.COME_BACK)], ())


def test_a_call_that_only_one_unseen_rank_would_have_to_make_has_no_reference() -> None:
    finding = found([call(30, op=Op.RECV, peer=1)], groups=TWO)
    assert [(each.rank, each.reference) for each in finding.suspects] == [(0, Reference.NOTHING)]


def test_of_three_ranks_the_one_is_told_that_is_not_in_the_call_in_which_two_wait() -> None:
    gather, receive = call(26, op=Op.ALL_GATHER), call(30, "p", Op.RECV, peer=0)
    finding = found([A, gather], [A, gather], [A, receive], groups={"g": (0, 1, 2), "p": (0, 2)})
    assert (told(finding), finding.certain) == ([(2, Change.LEAVE_OUT)], False)


def test_three_ranks_that_stand_are_told_together() -> None:
    ends = {2: End.STANDS, 3: End.FAILED, 4: End.STANDS}
    finding = found([A, B], [A, B], [A], [A], [A], groups={"g": tuple(range(5))}, ends=ends)
    assert finding.together == ((2, 3, 4),)
    assert {each.change for each in finding.suspects} == {Change.COME_BACK}


def test_two_ranks_with_a_wrong_call_each_are_told_together() -> None:
    groups = {"g": tuple(range(6))}
    right = [*STEP, A]
    finding = found(*[right] * 4, [*STEP, B], [*STEP, D], groups=groups)
    assert finding.together == ((4, 5),)
    assert [each.rank for each in finding.suspects] == [4, 5]
    assert not finding.certain


def test_one_rank_is_told_beside_two_that_differed_before_and_disturbed_nobody() -> None:
    groups = {"g": tuple(range(6))}
    elsewhere = [call(7, numel=1), B, C, A]
    finding = found(elsewhere, elsewhere, *[[*STEP, A]] * 3, [*STEP, D], groups=groups)
    assert ([each.rank for each in finding.suspects], finding.together) == ([5], ())


def test_nothing_is_told_where_three_ranks_would_have_to_change() -> None:
    groups = {"g": tuple(range(8))}
    right = [*STEP, A]
    wrong = [[*STEP, call(line)] for line in (7, 8, 9)]
    finding = found(*[right] * 5, *wrong, groups=groups)
    assert (finding.suspects, finding.failure) == ((), Failure.UNEXPLAINED)


def test_nothing_is_told_where_the_members_of_a_group_are_unknown() -> None:
    assert found([A], [A], [call(7, "other")]).failure is Failure.INCOMPLETE


def test_a_rank_that_waits_elsewhere_is_told_and_not_for_certain() -> None:
    finding = found([A, B], [A, B], [A], ends={2: End.ELSEWHERE})
    assert 2 in [each.rank for each in finding.suspects]
    assert not finding.certain


@pytest.mark.parametrize(("steps", "rank"), [(5, 1), (4, 0)], ids=["one more", "one less"])
def test_of_two_ranks_the_one_whose_loop_ran_as_often_as_never_before_is_told(steps: int, rank: int) -> None:
    epochs = [*STEP * 5, D] * 8
    finding = found([*epochs, *STEP * steps, D], [*epochs, *STEP * steps, A], groups=TWO)
    assert [(each.rank, each.reference) for each in finding.suspects] == [(rank, Reference.PAST)]
    assert not finding.certain


def test_of_two_groups_at_one_line_it_is_not_certain_which_belongs_there() -> None:
    groups = {"w": (0, 1, 2, 3), "a": (0, 1), "b": (2, 3), "c": (2, 3)}
    w, a, b, c = (call(line, group) for line, group in ((1, "w"), (2, "a"), (2, "b"), (2, "c")))
    finding = found([w, a, w], [w, a, w], [w, b], [w, c], groups=groups)
    assert not finding.certain


@pytest.mark.parametrize(("line", "certain"), [(2, False), (5, True)], ids=["of two groups", "of one group"])
def test_of_a_line_that_calls_in_several_groups_it_is_not_certain_that_a_rank_left_one_out(
    line: int, certain: bool
) -> None:
    groups = {"g": (0, 1, 2), "h": (0, 1, 2)}
    other = call(line, "h")
    finding = found([A, B, other], [A, B, other], [A, B, A], groups=groups)
    assert (told(finding), finding.certain) == ([(2, Change.PUT_IN)], certain)


def test_of_a_call_between_two_members_it_is_not_certain_that_it_is_too_many() -> None:
    groups = {"w": (0, 1, 2, 3), "a": (0, 1), "b": (2, 3)}
    w, a, b, evaluates = (call(line, group) for line, group in ((1, "w"), (2, "a"), (2, "b"), (3, "a")))
    mine, theirs = [w, a, w, a], [w, b, w, b]
    finding = found([*mine, evaluates], [*mine, w], [*theirs, w], [*theirs, w], groups=groups)
    assert (told(finding)[0][0], finding.certain) == (0, False)


def test_a_rank_does_not_come_too_soon_to_a_call_in_which_most_of_its_group_wait() -> None:
    gather = call(26, op=Op.ALL_GATHER, numel=1)

    def stage(rank: int) -> list[Call]:
        before, after = (
            [call(line, "p", op, peer=rank + step, numel=0) for line, op in lines if 0 <= rank + step < 5]
            for step, lines in ((-1, ((32, Op.RECV), (37, Op.SEND))), (1, ((34, Op.SEND), (35, Op.RECV))))
        )
        return [*before[:1], *after, *before[1:]]

    skipped = {rank: [*stage(rank), gather, *stage(rank), stage(rank)[0]] for rank in (2, 3)}
    others = {rank: [*stage(rank), gather, *stage(rank), gather] for rank in (0, 1, 4)}
    made = {**skipped, **others}
    finding = found(*(made[rank] for rank in range(5)), groups={"g": tuple(range(5)), "p": tuple(range(5))})
    assert [each.rank for each in finding.suspects] != [1]
    assert not finding.certain


def test_a_rank_that_shares_no_line_with_its_peers_is_not_certain_to_be_wrong_by_them() -> None:
    """All ranks of its program make the same mistake, if it is one."""
    own = [call(line, numel=line - 10) for line in (11, 12, 13)]
    usual = found([*STEP * 3, A, B], [*STEP * 3, A, B], [*STEP * 3, A, C])
    assert usual.certain
    other = found([*STEP * 3, A, B], [*STEP * 3, A, B], [*own * 3, own[0], own[2]])
    assert told(other)
    assert not other.certain
