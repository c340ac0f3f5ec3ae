"""Ranks of one program are compared call by call, each in its own groups."""

from collections.abc import Mapping, Sequence

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch_server.judge.theory.repair.peers import Peers, Roles
from ncclwatch_server.judge.theory.repair.tapes import Call, End, Tapes, write

GROUPS = {"w": (0, 1, 2, 3), "a": (0, 1), "b": (2, 3), "c": (0, 2), "d": (1, 3)}


def call(group: str, line: int, **changes: object) -> Call:
    site = CallSite(file="train.py", line=line, function="f")
    return Call(**({"group": group, "op": Op.ALL_REDUCE, "site": site} | changes))  # type: ignore[arg-type]


def step(row: str, column: str) -> list[Call]:
    return [call("w", 1), call(row, 2), call(column, 3)]


STEPS = {0: step("a", "c"), 1: step("a", "d"), 2: step("b", "c"), 3: step("b", "d")}


def tapes(ends: Mapping[int, End] | None = None, **changes: Sequence[Call]) -> Tapes:
    made = STEPS | {int(name[1:]): list(calls) for name, calls in changes.items()}
    return write(GROUPS, made, ends or {})


def test_groups_that_are_called_from_the_same_lines_and_share_no_rank_are_one_axis() -> None:
    axes = Roles(tapes()).axis_of
    assert axes["a"] == axes["b"] != axes["c"] == axes["d"] != axes["w"]


def test_one_call_with_a_wrong_group_makes_no_axis() -> None:
    wrong = [call("w", 1), call("c", 2), call("c", 3)]
    axes = Roles(tapes(r0=[*STEPS[0], *STEPS[0], *wrong], r1=STEPS[1] * 2, r2=STEPS[2] * 2, r3=STEPS[3] * 2)).axis_of
    assert axes["a"] == axes["b"] != axes["c"] == axes["d"]


def test_ranks_that_did_the_same_in_their_own_groups_are_one_class() -> None:
    assert Peers(Roles(tapes())).classes == [[0, 1, 2, 3]]


def test_a_rank_that_left_a_call_out_disagrees_with_all_others() -> None:
    peers = Peers(Roles(tapes(r3=[call("w", 1), call("d", 3)])))
    assert (peers.total, peers.disagreeing[peers.class_of[3]], peers.disagreeing[peers.class_of[0]]) == (3, 3, 1)
    assert peers.partings[peers.class_of[3], peers.class_of[0]] == 1


def test_a_rank_that_has_not_come_as_far_disagrees_with_nobody() -> None:
    assert Peers(Roles(tapes(r3=STEPS[3][:1]))).total == 0


def test_a_rank_that_ended_well_before_the_others_disagrees_with_them() -> None:
    assert Peers(Roles(tapes({3: End.GONE}, r3=STEPS[3][:1]))).total == 3


def test_a_rank_that_an_exception_ended_disagrees_with_nobody() -> None:
    assert Peers(Roles(tapes({3: End.FAILED}, r3=STEPS[3][:1]))).total == 0


def test_an_edited_tape_is_compared_from_the_edit_on() -> None:
    found = tapes(r3=[call("w", 1), call("d", 3)])
    roles = Roles(found)
    peers = Peers(roles)
    calls = found.by_rank[3].calls
    missing = roles.number(call("b", 2))
    assert peers.disagreements(3, calls, End.BLOCKED, 1) == 3
    assert peers.disagreements(3, (calls[0], missing, *calls[1:]), End.BLOCKED, 1) == 0
    assert peers.disagreements(0, found.by_rank[0].calls[:1], End.FREE, 1) == 2


def test_a_call_of_a_peer_is_made_in_the_own_group_with_the_own_root() -> None:
    root = call("a", 9, op=Op.BROADCAST, peer=1)
    roles = Roles(tapes(r0=[*STEPS[0], root]))
    number = roles.as_made_by(2, 0, roles.number(root))
    assert number is not None
    assert (roles.calls[number].group, roles.calls[number].peer) == ("b", 3)


def test_a_message_of_a_peer_goes_as_far_in_the_own_group() -> None:
    there = call("a", 9, op=Op.SEND, peer=1)
    roles = Roles(tapes(r0=[*STEPS[0], there]))
    number = roles.as_made_by(2, 0, roles.number(there))
    assert number is not None
    assert (roles.calls[number].group, roles.calls[number].peer) == ("b", 3)
    assert roles.as_made_by(3, 0, roles.number(there)) is None  # it is the last of its group


def test_calls_of_one_line_with_other_arguments_are_of_one_line() -> None:
    roles = Roles(tapes())
    usual, larger, elsewhere, nowhere = (
        roles.number(each)
        for each in (call("w", 1), call("w", 1, numel=7), call("w", 9), Call(group="w", op=Op.ALL_REDUCE))
    )
    assert roles.line(usual) == roles.line(larger) >= 0
    assert roles.line(elsewhere) not in (roles.line(usual), -1)
    assert roles.line(nowhere) == -1


def test_roots_at_other_places_of_their_groups_are_other_roles() -> None:
    one, other = (call("a", 9, op=Op.BROADCAST, peer=peer) for peer in (0, 1))
    assert Peers(Roles(tapes(r0=[one], r1=[other], r2=[], r3=[]))).total == 1


def test_sends_and_receives_are_compared_between_equal_stages_only() -> None:
    first = [call("a", 5, op=Op.SEND, peer=1)], [call("a", 6, op=Op.RECV, peer=0)]
    second = [call("b", 5, op=Op.SEND, peer=3)] * 2, [call("b", 6, op=Op.RECV, peer=2)]
    peers = Peers(Roles(tapes({0: End.GONE}, r0=first[0], r1=first[1], r2=second[0], r3=second[1])))
    assert list(peers.partings) == [(peers.class_of[2], peers.class_of[0]), (peers.class_of[0], peers.class_of[2])]


def test_other_stages_are_compared_by_rows_of_sends_and_receives() -> None:
    there, back = [call("a", 5, op=Op.SEND, peer=1)] * 3, [call("a", 6, op=Op.RECV, peer=0)] * 3
    after = call("w", 7)
    assert Peers(Roles(tapes(r0=[*there, after], r1=[*back, after], r2=[], r3=[]))).total == 0
    assert Peers(Roles(tapes(r0=[*there, after], r1=[*back, after, *back], r2=[], r3=[]))).total == 0
    assert Peers(Roles(tapes(r0=[*there, after, after], r1=[*back, after, *back], r2=[], r3=[]))).total == 1


def test_a_line_belongs_to_the_axis_that_is_used_there_most() -> None:
    other = [call("w", 1), call("w", 2)]
    wrong = [call("w", 1), call("d", 2)]
    peers = Peers(Roles(tapes(r0=other, r1=wrong, r2=other, r3=[call("w", 1)])))
    assert peers.disagreeing[peers.class_of[1]] == 2


def test_a_way_that_another_rank_went_is_no_break() -> None:
    found = tapes()
    peers = Peers(Roles(found))
    calls = found.by_rank[0].calls
    assert peers.alone_in(0, calls, [2]) == []
    assert peers.alone_in(0, (calls[0], calls[0], calls[2]), [2]) == [2]


def other_order(row: str, column: str) -> list[Call]:
    return [call("w", 1), call(column, 3), call(row, 2)]


def test_ranks_that_differ_between_all_their_meetings_do_so_by_design() -> None:
    by_design = tapes(r0=STEPS[0] * 5, r1=STEPS[1] * 5, r2=other_order("b", "c") * 5, r3=other_order("b", "d") * 5)
    peers = Peers(Roles(by_design))
    assert (peers.total, len(peers.by_design)) == (0, 2)


def test_ranks_that_met_once_in_another_group_still_differ_by_design() -> None:
    first = [call("once", 9)]
    made = {rank: first + STEPS[rank] * 5 for rank in (0, 1)}
    made |= {rank: first + other_order("b", "cd"[rank - 2]) * 5 for rank in (2, 3)}
    peers = Peers(Roles(write({**GROUPS, "once": (0, 1, 2, 3)}, made, {})))
    assert (peers.total, len(peers.by_design)) == (0, 2)


def test_ranks_that_differ_of_late_only_disagree() -> None:
    late = tapes(
        r0=STEPS[0] * 5, r1=STEPS[1] * 5, r2=STEPS[2] * 5, r3=[*STEPS[3] * 2, *other_order("b", "d") * 3]
    )  # fmt: skip
    peers = Peers(Roles(late))
    assert (peers.total, peers.by_design) == (3, set())


def test_ranks_that_have_met_too_seldom_do_not_differ_by_design() -> None:
    peers = Peers(Roles(tapes(r3=other_order("b", "d"))))
    assert (peers.total, peers.by_design) == (3, set())


def test_of_many_groups_that_one_line_calls_the_first_and_the_last_may_be_one_axis() -> None:
    """All others share rank 0 with the first one."""
    first, last = "g00", "g40"
    groups = {f"g{number:02}": (0, number) for number in range(1, 40)} | {first: (0, 50), last: (60, 61)}
    uses = {name: 3 if name in (first, last) else 1 for name in groups}
    made = {rank: [] for rank in range(62)} | {
        rank: [call(name, 1) for name in sorted(groups) for _ in range(uses[name]) if rank in groups[name]]
        for rank in range(62)
    }
    axes = Roles(write(groups, made, {})).axis_of
    assert axes[first] == axes[last]
