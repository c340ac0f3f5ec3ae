"""Says what a process group is: its name and its members. The one place that makes a group's key.

torch names a group by how many a rank has made before it, or as its maker likes. So ranks may hold different groups
under one name: where one side has made a group more, or where each side makes only its own. What they issue there has
nothing to do with each other, and nobody is compared across them.

In digests 64 bits stand for both: 63 of the name and of the digest of the members (`ring.members.digest_of`), and the
highest says that these are known. Where a rank does not know them the key is one of the name alone. That is never read
as a group without members: `state.group_index` counts such a rank to the group of that name that most ranks hold.

Where people read a name that several groups have, the members follow it: "1@4-7".
"""

from collections.abc import Sequence

from ncclwatch.contract.model.rank import GroupView
from ncclwatch.contract.ring.members import digest_of
from ncclwatch.contract.words.text import rank_list

APART = "@"  # between a group's name and what tells it from another one of that name
MEMBERS_KNOWN = 1 << 63  # of a key
_MEMBERS_CHARS_MAX = 40  # of members after a name


def text_key(text: str) -> int:
    """Return 64 bits that stand for a text: FNV-1a (Fowler, Noll, Vo) over its UTF-8."""
    key = 0xCBF29CE484222325
    for byte in text.encode():
        key = (key ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return key


def name_key(name: str) -> int:
    """Return 32 bits that stand for the name of a group: they tell a label, and no group."""
    return text_key(name) & 0xFFFFFFFF


def group_key(name: str, members_digest: int = 0) -> int:
    """Return 64 bits that stand for a group, by its name and the digest of its members; 0: these are unknown."""
    key = (text_key(name) ^ members_digest) & ~MEMBERS_KNOWN
    return key | MEMBERS_KNOWN if members_digest else key


def digest_in(group: GroupView) -> int:
    """Return the digest of a group's members, 0 where nobody knows it."""
    return group.members_digest or (digest_of(group.ranks) if group.ranks else 0)


def name_of(group: str) -> str:
    """Return a group's name as torch has it."""
    return group.partition(APART)[0]


def name_with(name: str, ranks: Sequence[int]) -> str:
    """Return a name that no other group of that name has: its members follow, or a digest where they are too long."""
    words = rank_list(ranks)
    if len(words) > _MEMBERS_CHARS_MAX or list(ranks) != sorted(set(ranks)):
        words = f"{ranks[0]}...{digest_of(ranks):016x}"
    return f"{name}{APART}{words}"
