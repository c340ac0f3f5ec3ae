"""The members of big groups travel as runs, and arrive as they were."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclwatch.contract import wire
from ncclwatch.contract.model.rank import GroupView, RankView
from ncclwatch.contract.ring import members
from ncclwatch.contract.ring.members import runs_of
from tests.unit.server.server_values import view as rank_view


def view(*groups: tuple[int, ...]) -> RankView:
    """Return a view of a rank in these groups."""
    known = tuple(
        GroupView(name=str(n), desc="", ranks=ranks, enqueued=1, completed=1, prefix_hash=7)
        for n, ranks in enumerate(groups)
    )
    return replace(rank_view(0), groups=known)


def sent(*views: RankView) -> tuple[bytes, tuple[RankView, ...]]:
    """Return views as bytes of the wire, and what arrives."""
    data = wire.encode(wire.Views(index=0, ranks=views))
    message = wire.decode_from_agent(data)
    assert isinstance(message, wire.Views)
    return data, message.ranks


def test_ranks_in_step_are_one_run():
    assert runs_of(tuple(range(0, 98_304, 8))) == ((0, 8, 12_288),)
    assert runs_of((3,)) == ((3, 1, 1),)
    assert runs_of((0, 1, 8, 9)) == ((0, 1, 2), (8, 1, 2))


@given(st.lists(st.integers(0, 200), unique=True, max_size=120).map(tuple))
def test_any_group_arrives_as_it_was_sent(ranks: tuple[int, ...]):
    original = view(ranks, tuple(range(5, 400, 3)), (1, 2))
    assert sent(original)[1] == (original,)


def test_views_of_one_big_group_are_small_and_share_its_members():
    world = tuple(range(98_304))
    data, (first, second) = sent(view(world), view(world))
    assert len(data) < len(sent(view((0,)), view((0,)))[0]) + 100
    assert first.groups[0].ranks == world
    assert first.groups[0].ranks is second.groups[0].ranks


def hostile(count: int) -> GroupView:
    """Return a group whose runs stand for so many ranks, as it arrives."""
    original = sent(view(tuple(range(1000))))[0]
    message = wire.decode_from_agent(original.replace(b"[0,1,1000]", f"[0,1,{count}]".encode()))
    assert isinstance(message, wire.Views)
    return message.ranks[0].groups[0]


@pytest.mark.parametrize("count", [members.GROUP_MEMBERS_MAX + 1, 9_000_000_000, 2**62])
def test_runs_that_stand_for_too_many_ranks_stand_for_ranks_that_nobody_knows(count: int):
    assert (hostile(count).ranks, hostile(count).runs, hostile(count).unnamed) == ((), (), count)


@pytest.mark.parametrize("count", [0, -5])
def test_runs_of_no_ranks_are_no_list(count: int):
    assert (hostile(count).ranks, hostile(count).unnamed) == ((), 1)


def test_of_many_lists_in_one_message_those_that_fit_are_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members, "MEMBERS_MAX", 4_000)
    (arrived,) = sent(view(*(tuple(range(first, 1_000)) for first in range(5))))[1]
    assert [bool(group.ranks) for group in arrived.groups] == [True] * 4 + [False]
    assert arrived.groups[4].unnamed == 996


def test_lists_of_many_messages_are_kept_no_longer_than_there_is_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members, "MEMBERS_MAX", 4_000)
    kept = members._Expanded()
    lists = [kept.get(((first, 1, 900),)) for first in range(6)]
    assert kept.get(((5, 1, 900),)) is lists[5]
    assert kept.get(((0, 1, 900),)) is not lists[0]
    assert kept.get(((0, 1, 900),)) == lists[0]


def test_a_message_may_have_its_fill_of_members_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members, "MEMBERS_MAX", 100)
    assert sent(view(tuple(range(100))), view(tuple(range(100))))
    assert sent(view(tuple(range(101))))[1][0].groups[0].ranks == ()
