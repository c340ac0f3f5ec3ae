"""The members of big groups travel as runs, and arrive as they were."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclwatch.contract import members, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.members import runs_of
from ncclwatch.contract.model import GroupView, RankView
from tests.unit.server_values import view as rank_view


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
    assert len(data) < 2_000
    assert first.groups[0].ranks == world
    assert first.groups[0].ranks is second.groups[0].ranks


def test_runs_that_stand_for_too_many_ranks_are_refused():
    original = sent(view(tuple(range(1000))))[0]
    hostile = original.replace(b"[0,1,1000]", b"[0,1,9000000000]")
    assert hostile != original
    with pytest.raises(WireError, match="members"):
        wire.decode_from_agent(hostile)


def test_a_message_may_have_its_fill_of_members_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(members, "MEMBERS_MAX", 100)
    assert sent(view(tuple(range(100))), view(tuple(range(100))))
    with pytest.raises(WireError):
        sent(view(tuple(range(101))))
