"""What is tried: each small change to the calls of one rank that could have kept a job going."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch_server.judge.theory.repair.edits import Change, Edit, edits
from ncclwatch_server.judge.theory.repair.hang import Hang
from ncclwatch_server.judge.theory.repair.search import _size_of
from ncclwatch_server.judge.theory.repair.tapes import Call, End, write


def call(line: int, op: Op = Op.ALL_REDUCE, **changes: object) -> Call:
    site = CallSite(file="train.py", line=line, function="f")
    return Call(**({"group": "g", "op": op, "numel": line, "site": site} | changes))  # type: ignore[arg-type]


A, B, C, D = (call(line) for line in (1, 2, 3, 4))


def tried(rank: int, change: Change, *calls: Sequence[Call]) -> list[tuple[int, int, list[Call]]]:
    """Return of all changes of one kind to a rank: where, how many calls it takes out, and what it puts in."""
    hang = Hang(write({"g": tuple(range(len(calls)))}, dict(enumerate(calls)), {}))
    found = edits(hang.roles, hang.departed(rank), hang.wanted_of(rank))
    return [
        (edit.at, edit.out, [hang.roles.calls[number] for number in edit.put])
        for edit in found
        if edit.change is change
    ]


def test_a_call_is_replaced_by_what_its_rank_issues_at_that_line_otherwise() -> None:
    usual, other = (call(5, Op.BROADCAST, peer=peer) for peer in (0, 1))
    step = [A, usual, B]
    replaced = tried(0, Change.REPLACE, [*step, *step, D, other], [*step, *step, D, C])
    assert [put for at, _, put in replaced if at == 7] == [[C], [usual]]


def test_calls_are_left_out_up_to_where_the_others_went_on() -> None:
    left_out = tried(0, Change.LEAVE_OUT, [A, call(7), call(8), B, C], [A, B, D])
    assert [(at, out) for at, out, _ in left_out if out > 1] == [(1, 2)]


def test_what_came_only_sometimes_at_a_point_may_be_missing_as_well() -> None:
    evaluation = [call(7), call(8)]
    turns = [A, B] * 3
    before = [*turns, *evaluation] * 2
    put_in = tried(0, Change.PUT_IN, [*before, *turns, A], [*before, *turns, *evaluation[:1]])
    blocks = [put for at, _, put in put_in if at == len(before) + len(turns) and len(put) > 1]
    assert evaluation in blocks


def hang_of(
    *calls: Sequence[Call], ends: Mapping[int, End] | None = None, stops: Mapping[int, int] | None = None
) -> Hang:
    groups = {"g": tuple(range(len(calls))), "pair": (0, 1)}
    return Hang(write(groups, dict(enumerate(calls)), ends or {}, stops))


def test_who_is_waited_for_may_be_wrong_the_other_side_of_a_message_or_all_members() -> None:
    receive = call(5, Op.RECV, peer=1)
    assert hang_of([A, receive], [A], [A], ends={1: End.STANDS, 2: End.STANDS}).candidates() == {0, 1}
    anyone = replace(receive, peer=-1)
    assert hang_of([A, anyone], [A], [A], ends={1: End.STANDS, 2: End.STANDS}).candidates() == {0, 1, 2}


def test_of_whom_others_wait_for_a_message_only_its_other_side_is_wanted() -> None:
    there, back = call(5, Op.SEND, peer=1), call(6, Op.RECV, peer=0)
    answer, answered = call(7, Op.SEND, peer=0), call(8, Op.RECV, peer=1)
    elsewhere = replace(back, group="pair"), replace(answer, group="pair")
    for waits_in, wanted in ((there, back), (answered, answer)):
        hang = hang_of([there, answered, waits_in], [back, answer, *elsewhere, A], [A])
        assert [hang.roles.calls[number] for number in hang.wanted_of(1)] == [wanted, A]


def test_no_change_elsewhere_ends_the_wait_for_an_asynchronous_call() -> None:
    later = replace(B, waits=False)
    hang = hang_of([A, later], [A], ends={1: End.STANDS})
    number = hang.roles.number(later)
    assert not hang.passes(Edit(rank=0, change=Change.PUT_IN, at=1, put=(number,)))
    assert hang.passes(Edit(rank=0, change=Change.LEAVE_OUT, at=1, out=1))


def test_ranks_that_wait_at_a_call_for_asynchronous_ones_are_replayed() -> None:
    later, other = replace(B, waits=False), call(5, group="pair")
    hang = hang_of([A, later, other], [A, later, other], [A], ends={2: End.STANDS}, stops={0: 2, 1: 2})
    assert (hang.failure, hang.stuck) == (None, {0, 1})


def test_to_take_the_call_to_which_a_rank_has_always_come_breaks_its_routine() -> None:
    usual, other = [*[A, B, C] * 5, A, B], [*[A, B, C] * 5, A, D]
    hang = hang_of(usual, other)
    broken = [hang.breaks_with(Edit(rank=rank, change=Change.LEAVE_OUT, at=16, out=1)) for rank in (0, 1)]
    assert broken == [1, 0]


def test_who_stands_in_a_known_call_has_rather_missed_one_than_made_that_one_too_often() -> None:
    hang = hang_of([A, B, C, A, B], [A, B, C, A, C])
    missing = hang.tapes.by_rank[1].calls[1:2]
    missed = Edit(rank=1, change=Change.PUT_IN, at=4, put=missing)
    stands, before = (Edit(rank=1, change=Change.LEAVE_OUT, at=at, out=1) for at in (4, 3))
    assert _size_of(hang, before) < _size_of(hang, missed) < _size_of(hang, stands)


def test_a_block_that_the_peers_made_where_the_rank_went_on_may_be_missing() -> None:
    put_in = tried(0, Change.PUT_IN, [A, B, C], [A, call(7), call(8), B, C])
    assert [(at, put) for at, _, put in put_in if len(put) > 1] == [(1, [call(7), call(8)])]


def test_a_rank_that_waits_late_for_a_call_does_so_after_a_change_too_unless_it_takes_the_call_out() -> None:
    later = replace(B, waits=False)
    hang = hang_of([A, later, C], [A, later], ends={1: End.STANDS}, stops={0: 1})
    number = hang.roles.number(D)
    late = {
        "before": Edit(rank=0, change=Change.PUT_IN, at=0, put=(number,)),
        "after": Edit(rank=0, change=Change.PUT_IN, at=2, put=(number,)),
        "without": Edit(rank=0, change=Change.LEAVE_OUT, at=1, out=1),
    }
    assert hang.scripts[0].late == 1
    assert {name: hang.script_with(edit).late for name, edit in late.items()} == {
        "before": 2, "after": 1, "without": -1,
    }  # fmt: skip
