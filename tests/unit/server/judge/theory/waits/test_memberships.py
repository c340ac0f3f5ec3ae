"""Which members a group has whose list nobody could read: those that are certain, and how many more."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from ncclwatch.contract.model.rank import GroupView, RankView
from ncclwatch.contract.ring.members import GROUP_MEMBERS_MAX, digest_of
from ncclwatch_server.judge.telling.words import group_words
from ncclwatch_server.judge.theory.waits.memberships import with_members
from tests.unit.server.server_values import view

ODD = (3, 0, 5)


def group(name: str = "g", ranks: tuple[int, ...] = (), size: int = 0, digest: int = 0) -> GroupView:
    return GroupView(
        name=name, desc="", ranks=ranks, enqueued=1, completed=0, prefix_hash=0, size=size, members_digest=digest
    )


def lost(ranks: tuple[int, ...], name: str = "g") -> GroupView:
    """Return a group of these members whose list found no room."""
    return group(name, size=len(ranks), digest=digest_of(ranks))


def views(groups: Mapping[int, GroupView]) -> dict[int, RankView]:
    return {rank: replace(view(rank), groups=(each,)) for rank, each in groups.items()}


def found(groups: Mapping[int, GroupView], world_size: int = 8, *, partly: bool = True) -> dict[int, GroupView]:
    return {rank: each.groups[0] for rank, each in with_members(views(groups), world_size, partly=partly).items()}


def members(groups: Mapping[int, GroupView], world_size: int = 8) -> list[tuple[tuple[int, ...], int]]:
    return [(each.ranks, each.unnamed) for each in found(groups, world_size).values()]


def test_the_list_of_another_rank_with_the_same_digest_is_the_same_list_in_its_order():
    assert members({0: lost(ODD), 3: group(ranks=ODD)}) == [(ODD, 0), (ODD, 0)]


def test_a_list_of_the_same_name_and_length_with_another_digest_is_another_list():
    assert members({0: lost(ODD), 3: group(ranks=(3, 0, 4))})[0] == ((0,), 2)
    assert members({0: lost(ODD), 3: group(ranks=(0, 3, 5))})[0] == ((0,), 2)


def test_a_list_of_another_group_is_another_list():
    assert members({0: lost(ODD), 3: group("h", ranks=ODD)})[0] == ((0,), 2)


@pytest.mark.parametrize("size", [1, 5, 98_304])
def test_a_digest_of_the_first_ranks_in_their_order_names_them(size: int):
    assert members({0: lost(tuple(range(size)))}, 100_000) == [(tuple(range(size)), 0)]


def test_a_group_of_as_many_members_as_ranks_has_all_of_them():
    shuffled = tuple(random.Random(1).sample(range(8), 8))
    assert members({4: lost(shuffled)}) == [(tuple(range(8)), 0)]


def test_a_number_of_members_that_no_group_has_is_not_counted_up():
    (only,) = found({0: group(size=2**32 - 1, digest=7)}).values()
    assert (only.ranks, only.unnamed) == ((0,), 2**32 - 2)
    assert GROUP_MEMBERS_MAX < 2**32 - 1


def test_ranks_that_have_recorded_a_group_are_its_members_and_the_others_stay_unnamed():
    assert members({rank: lost(ODD) for rank in (0, 5)}) == [((0, 5), 1), ((0, 5), 1)]
    assert members({rank: lost(ODD) for rank in (0, 3, 5)}) == [((0, 3, 5), 0)] * 3


def test_two_groups_of_one_name_are_two():
    ends, middle = lost((0, 7)), lost((3, 4))
    assert members({0: ends, 7: ends, 3: middle}) == [((0, 7), 0), ((0, 7), 0), ((3,), 1)]


def test_where_not_even_the_number_is_known_all_other_ranks_may_be_members():
    assert members({0: group(), 1: group()}) == [((0, 1), 6), ((0, 1), 6)]


def test_what_is_only_partly_known_can_be_left_unknown():
    assert found({0: lost(ODD)}, partly=False)[0] == lost(ODD)
    assert found({0: lost(ODD), 3: group(ranks=ODD)}, partly=False)[0].ranks == ODD


def test_views_that_lack_nothing_are_left_as_they_are():
    known = views({0: group(ranks=(0, 1)), 1: group(ranks=(0, 1))})
    assert with_members(known, 2, partly=True) is known


def test_a_group_says_how_many_of_its_members_have_no_name():
    assert group_words(views({0: group(ranks=(0, 1), size=5)}), "g") == "group g (ranks 0-1 and 3 more)"
    assert [each.unnamed for each in (group(), group(size=3), group(ranks=(1,)), group(ranks=(1,), size=1))] == [
        1,
        3,
        0,
        0,
    ]
