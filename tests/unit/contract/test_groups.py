"""A group is its name and its members: what stands for both in digests, and what people read."""

import pytest

from ncclwatch.contract.groups import MEMBERS_KNOWN, digest_in, group_key, name_of, name_with
from ncclwatch.contract.model.rank import GroupView
from ncclwatch.contract.ring.members import digest_of


def view(ranks: tuple[int, ...] = (), digest: int = 0) -> GroupView:
    return GroupView(
        name="1", desc="", ranks=ranks, enqueued=0, completed=0, prefix_hash=0, size=2, members_digest=digest
    )


def test_groups_differ_by_their_name_by_their_members_and_by_the_order_of_these():
    lists = [digest_of(ranks) for ranks in ((0, 1), (2, 3), (1, 0), (0, 1, 2))]
    assert len({group_key(name, members) for name in ("1", "2") for members in (*lists, 0)}) == 10


def test_a_key_says_whether_the_members_are_known():
    assert [group_key(name, digest_of((4, 5))) >= MEMBERS_KNOWN for name in ("0", "1", "tp")] == [True] * 3
    assert [group_key(name) >= MEMBERS_KNOWN for name in ("0", "1", "tp")] == [False] * 3
    assert max(group_key(str(number), 2**64 - 1) for number in range(64)) < 2**64


def test_a_view_has_the_digest_of_its_members_however_they_are_known():
    assert digest_in(view((2, 3))) == digest_in(view(digest=digest_of((2, 3)))) == digest_of((2, 3))
    assert digest_in(view()) == 0


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((4, 5, 6, 7), "1@4-7"), ((0, 2), "1@0,2"), ((2, 0), f"1@2...{digest_of((2, 0)):016x}")],
)
def test_members_follow_a_name_that_other_groups_have_too(ranks: tuple[int, ...], words: str):
    assert name_with("1", ranks) == words
    assert name_of(words) == name_of("1") == "1"


def test_of_long_lists_of_members_each_has_a_name_of_its_own_that_is_short():
    names = {name_with("1", (0, *range(3, 2000, 2), last)) for last in range(3000, 3010)}
    assert len(names) == 10
    assert max(map(len, names)) < 40
