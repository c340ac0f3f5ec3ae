"""Replayed calls meet as c10d lets them meet: one test for each rule."""

from collections.abc import Collection, Mapping, Sequence

import pytest

from ncclwatch.contract.model.rank import CallSite, Op
from ncclwatch_server.judge.theory.repair.lines import place_of
from ncclwatch_server.judge.theory.repair.replay import Outcome, Script, Stage, above_in_tree, play
from ncclwatch_server.judge.theory.repair.tapes import Call, End, write

PAIR, TRIO, FOUR = {"g": (0, 1)}, {"g": (0, 1, 2)}, {"g": (0, 1, 2, 3)}


def call(op: Op = Op.ALL_REDUCE, line: int = 1, **changes: object) -> Call:
    site = CallSite(file="train.py", line=line, function="f")
    return Call(**({"group": "g", "op": op, "numel": 4, "site": site} | changes))  # type: ignore[arg-type]


def send(peer: int, **changes: object) -> Call:
    return call(Op.SEND, peer=peer, **changes)


def recv(peer: int, **changes: object) -> Call:
    return call(Op.RECV, peer=peer, **changes)


def played(
    *calls: Sequence[Call],
    groups: Mapping[str, tuple[int, ...]] = PAIR,
    ends: Mapping[int, End] | None = None,
    eager: bool = False,
    on_device: Sequence[str] = (),
    late: Mapping[int, int] | None = None,
    joins: Collection[Call] = (),
) -> Outcome:
    tapes = write(groups, dict(enumerate(calls)), ends or {}, on_device=on_device)
    scripts = [Script(tape.calls, tape.end, (late or {}).get(rank, -1)) for rank, tape in tapes.by_rank.items()]
    return play(Stage(tapes, joins=frozenset(map(place_of, joins))), scripts, eager=eager)


def gone(*ranks: int) -> Mapping[int, End]:
    return dict.fromkeys(ranks, End.GONE)


def test_a_collective_ends_when_all_members_have_entered() -> None:
    assert list(played([call()], [call()]).at) == [1, 1]


def test_a_collective_waits_for_a_member_that_is_gone() -> None:
    found = played([call()], [], ends=gone(1))
    assert (list(found.at), found.stuck) == ([0, 0], {0})


def test_a_rank_without_further_calls_may_still_enter_unless_it_is_gone_or_stands() -> None:
    for end, stuck in ((End.FREE, set()), (End.BLOCKED, set()), (End.STANDS, {0}), (End.FAILED, {0})):
        assert played([call()], [], ends={1: end}).stuck == stuck


def test_collectives_of_two_groups_are_counted_apart() -> None:
    groups = {"g": (0, 1), "h": (0, 1)}
    other = call(group="h")
    assert played([call(), other], [other, call()], groups=groups).stuck == {0, 1}


def test_calls_of_two_lines_pair_silently_where_their_arguments_agree() -> None:
    assert list(played([call(line=1)], [call(line=2)]).at) == [1, 1]


@pytest.mark.parametrize(
    "other",
    [call(numel=5), call(Op.BARRIER), call(dtype="float16"), call(reduce_op="max"), call(Op.ALL_GATHER)],
    ids=["size", "operation", "type", "reduction", "gather"],
)
def test_parts_that_do_not_agree_never_end(other: Call) -> None:
    assert played([call()], [other]).stuck == {0, 1}


def test_an_all_gather_may_be_ragged() -> None:
    assert list(played([call(Op.ALL_GATHER, numel=4)], [call(Op.ALL_GATHER, numel=5)]).at) == [1, 1]


def test_members_that_disagree_hold_up_those_that_agree() -> None:
    assert played([call()], [call()], [call(numel=5)], groups=TRIO).stuck == {0, 1, 2}


def test_the_root_of_a_broadcast_needs_nobody() -> None:
    found = played([call(Op.BROADCAST, peer=0)], [], ends=gone(1))
    assert (list(found.at), found.stuck) == ([1, 0], set())


def test_a_receiver_of_a_broadcast_needs_those_above_it_in_the_tree() -> None:
    part = call(Op.BROADCAST, peer=0)
    found = played([part], [], [part], [part], groups=FOUR, ends=gone(1))
    assert (list(found.at), found.stuck) == ([1, 0, 1, 0], {3})


def test_the_tree_of_a_broadcast_begins_at_its_root() -> None:
    members = (0, 1, 2, 3)
    assert [above_in_tree(rank, 1, members) for rank in members] == [(2, 1), (), (1,), (1,)]


def test_a_receiver_of_a_scatter_needs_its_root_alone() -> None:
    part = call(Op.SCATTER, peer=0)
    assert list(played([part], [], [part], groups=TRIO, ends=gone(1)).at) == [1, 0, 1]


def test_whoever_sends_to_the_root_of_a_gather_needs_nobody_and_the_root_needs_all() -> None:
    part = call(Op.GATHER, peer=0)
    found = played([part], [part], [], groups=TRIO, ends=gone(2))
    assert (list(found.at), found.stuck) == ([0, 1, 0], {0})


def test_parts_with_two_roots_never_meet() -> None:
    found = played([call(Op.REDUCE, peer=0)], [call(Op.REDUCE, peer=1)])
    assert found.stuck == {0, 1}


@pytest.mark.parametrize(("eager", "at"), [(True, 1), (False, 0)])
def test_an_eager_send_is_through_before_it_is_received(eager: bool, at: int) -> None:
    assert played([send(1)], [], ends=gone(1), eager=eager).at[0] == at


def test_the_nth_send_of_a_pair_meets_the_nth_receive() -> None:
    assert list(played([send(1), send(1)], [recv(0), recv(0)]).at) == [2, 2]


def test_messages_with_two_tags_do_not_meet() -> None:
    assert played([send(1, tag=1)], [recv(0, tag=2)]).stuck == {0, 1}


def test_messages_of_one_tag_overtake_those_of_another() -> None:
    found = played([send(1, tag=1), send(1, tag=2)], [recv(0, tag=2), recv(0, tag=1)], eager=True)
    assert list(found.at) == [2, 2]


def test_messages_of_two_groups_do_not_meet() -> None:
    assert played([send(1)], [recv(0, group="h")], groups={"g": (0, 1), "h": (0, 1)}).stuck == {0, 1}


def test_a_receive_from_any_source_takes_what_was_sent() -> None:
    found = played([], [send(2)], [recv(-1)], groups=TRIO, ends=gone(0))
    assert list(found.at) == [0, 1, 1]


def test_a_receive_from_any_source_that_waits_is_met_by_the_first_send() -> None:
    found = played([recv(-1), recv(-1)], [send(0)], [send(0)], groups=TRIO)
    assert list(found.at) == [2, 1, 1]


def test_whoever_may_still_send_frees_a_receive_from_any_source() -> None:
    assert played([recv(-1)], [], ends={1: End.FREE}).stuck == set()
    assert played([recv(-1)], [], [], groups=TRIO, ends=gone(1, 2)).stuck == {0}


def test_an_asynchronous_call_does_not_hold_up_what_comes_after_it() -> None:
    groups = {"g": (0, 1), "h": (0, 1)}
    found = played([call(waits=False), call(group="h")], [call(group="h"), call()], groups=groups)
    assert list(found.at) == [2, 2]


def test_a_rank_waits_late_for_what_it_issued_asynchronously() -> None:
    found = played([call(waits=False)], [], ends=gone(1), late={0: 0})
    assert (list(found.at), found.stuck) == ([0, 0], {0})


@pytest.mark.parametrize(
    "before", [call(waits=False), call(Op.BROADCAST, peer=0, waits=False)], ids=["with all members", "from a root"]
)
def test_a_call_that_joins_asynchronous_ones_begins_once_they_are_through(before: Call) -> None:
    joining = call(line=2)
    assert list(played([before, joining], [before, joining], joins=[joining]).at) == [2, 2]


def test_two_sides_of_a_batch_of_sends_and_receives_meet() -> None:
    pair = [send(1, waits=False), recv(1, waits=False)], [send(0, waits=False), recv(0, waits=False)]
    assert played(*pair, late={0: 1, 1: 1}).stuck == set()


@pytest.mark.parametrize("on_device", [(), ("g",)], ids=["gloo", "stream"])
def test_on_a_stream_nothing_ends_after_parts_that_do_not_agree(on_device: Sequence[str]) -> None:
    tapes = [call(numel=1, waits=False), call(waits=False)], [call(numel=2, waits=False), call(waits=False)]
    found = played(*tapes, on_device=on_device, late={0: 1, 1: 1})
    assert found.stuck == ({0, 1} if on_device else set())


def test_a_circle_over_three_groups_is_stuck() -> None:
    groups = {"a": (0, 1), "b": (1, 2), "c": (2, 0)}
    a, b, c = (call(group=name) for name in "abc")
    assert played([a, c], [b, a], [c, b], groups=groups).stuck == {0, 1, 2}


def test_a_send_that_joins_asynchronous_collectives_begins_once_they_are_through() -> None:
    """Rank 1 receives before it comes to the collective: so they wait for each other where the send joins it alone."""
    before, sending = call(waits=False), send(1, line=2)
    tapes = [before, sending], [recv(0, line=3), before]
    assert played(*tapes).stuck == set()
    assert played(*tapes, joins=[sending]).stuck == {0, 1}


def test_a_member_of_a_broadcast_is_through_once_those_above_it_have_come_whoever_came_before() -> None:
    """Rank 15 waits for four others above it in the tree, rank 8 for the root alone."""
    members = tuple(range(16))
    there = [[call(Op.BROADCAST, peer=0)] if rank in (0, 8, 15) else [] for rank in members]
    found = played(*there, groups={"g": members}, ends=dict.fromkeys({*members} - {0, 8, 15}, End.STANDS))
    assert (found.stuck, found.at[8], found.at[15]) == ({15}, 1, 0)
