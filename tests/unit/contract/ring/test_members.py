"""The members of big groups travel as runs, and arrive as they were."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclwatch.contract import wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.rank import GroupView, RankView
from ncclwatch.contract.ring import members
from ncclwatch.contract.ring.members import Runs, runs_of, unpacked
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


def arrived(runs: Runs, world_size: int) -> RankView:
    """Return a view with a group of these members, as a server reads it that knows a job of so many ranks."""
    group = GroupView(name="0", desc="", ranks=(), enqueued=1, completed=1, prefix_hash=7, runs=runs)
    message = wire.open_from_agent(wire.encode(wire.Views(index=0, ranks=(replace(rank_view(0), groups=(group,)),))))
    assert isinstance(message, wire.UnreadViews)
    (found,) = message.read(world_size).ranks
    return found


@pytest.mark.parametrize(
    "runs",
    [
        ((0, 1, 9),),
        ((1, 1, 8),),
        ((0, 1, 5), (0, 1, 5)),
        ((0, 0, 9),),
        ((-1, 1, 2),),
        ((0, 8, 2),),
        ((7, -4, 3),),
        ((0, 1, 2**62),),
        ((0, 2**62, 2),),
        ((0, 1, 0),),
        ((0, 1, -5),),
    ],
    ids=str,
)
def test_runs_that_name_more_ranks_than_the_job_has_are_refused_with_a_sentence(runs: Runs):
    with pytest.raises(WireError, match=r"rank 0 in a group whose members .* do not fit into ranks 0\.\.7 of its job"):
        arrived(runs, 8)


@pytest.mark.parametrize("runs", [((0, 1, 8),), ((7, -1, 8),), ((0, 4, 2), (1, 4, 2)), ((7, 0, 1),)], ids=str)
def test_members_are_runs_until_they_are_judged(runs: Runs):
    view = arrived(runs, 8)
    assert view.groups[0].runs == runs
    assert view.groups[0].ranks == ()
    (whole,) = unpacked((view,))
    assert len(whole.groups[0].ranks) == sum(count for _, _, count in runs)


def test_lists_that_are_expanded_share_the_numbers_of_ranks():
    kept = members._Expanded()
    world, odd = kept.get(((0, 1, 5_000),)), kept.get(((1, 2, 2_500),))
    assert world == tuple(range(5_000))
    assert odd == tuple(range(1, 5_000, 2))
    assert all(one is other for one, other in zip(odd, world[1::2], strict=True))
    assert kept.get(((9, -3, 4),)) == (9, 6, 3, 0)
    assert kept.get(((4_999, 1, 3), (7, 1, 1))) == (4_999, 5_000, 5_001, 7)


def test_of_many_lists_in_one_message_those_that_fit_are_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members, "MEMBERS_MAX", 4_000)
    (arrived,) = sent(view(*(tuple(range(first, 1_000)) for first in range(5))))[1]
    assert [bool(group.ranks) for group in arrived.groups] == [True] * 4 + [False]
    assert arrived.groups[4].unnamed == 996


def test_lists_of_many_messages_are_kept_no_longer_than_there_is_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members, "REMEMBERED_MAX", 4_000)
    kept = members._Expanded()
    lists = [kept.get(((first, 1, 900),)) for first in range(6)]
    assert kept.get(((5, 1, 900),)) is lists[5]
    assert kept.get(((0, 1, 900),)) is not lists[0]
    assert kept.get(((0, 1, 900),)) == lists[0]


def test_a_message_may_have_its_fill_of_members_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members, "MEMBERS_MAX", 100)
    assert sent(view(tuple(range(100))), view(tuple(range(100))))
    assert sent(view(tuple(range(101))))[1][0].groups[0].ranks == ()
