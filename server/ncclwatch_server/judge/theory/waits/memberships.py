"""Completes the members of groups whose list nobody could read, and never further than that is certain.

A list may have found no room in a ring, or not be what its digest says. Its number of members and its digest are known
even then, mostly. Another rank's list with the same digest is the same list; a digest may be that of all ranks; a group
of as many members as the job has ranks has all of them; and a rank that has recorded a group is a member of it. What is
still missing then stays unnamed: a group has members, and one whose members nobody knows is not a group without any.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ncclwatch.contract.model.rank import CallSite, GroupView, RankView
from ncclwatch.contract.ring.members import GROUP_MEMBERS_MAX, digest_of, digest_of_all

# Name, number of members, digest; and, where neither of these is known, where it was made: ranks may hold different
# groups under one name, and those that made them at one line hold one.
_Key = tuple[str, int, int, CallSite | None]


@dataclass(slots=True)
class _Told:
    """What all ranks together say of the members of the groups in question."""

    lists: dict[_Key, tuple[int, ...]] = field(default_factory=dict)
    holders: dict[_Key, list[int]] = field(default_factory=dict)  # who has recorded a group whose list is unknown


def possible(views: Mapping[int, RankView], world_size: int) -> Mapping[int, RankView]:
    """Return views without the lists of members that name a rank twice, or one that the job has not."""
    fits: dict[int, bool] = {}  # by the list itself: the ranks of a group share one

    def is_possible(ranks: tuple[int, ...]) -> bool:
        found = fits.get(id(ranks))
        if found is None:
            found = not ranks or (min(ranks) >= 0 and max(ranks) < world_size and len(set(ranks)) == len(ranks))
            fits[id(ranks)] = found
        return found

    lists = {id(group.ranks): group.ranks for view in views.values() for group in view.groups}
    if all(map(is_possible, lists.values())):
        return views
    wrong = {rank for rank, view in views.items() if not all(is_possible(group.ranks) for group in view.groups)}
    found = dict(views)
    for rank in wrong:
        groups = (
            group if is_possible(group.ranks) else replace(group, ranks=(), size=0, members_digest=0)
            for group in views[rank].groups
        )
        found[rank] = replace(views[rank], groups=tuple(groups))
    return found


def with_members(views: Mapping[int, RankView], world_size: int, *, partly: bool) -> Mapping[int, RankView]:
    """Return views whose groups have the members that are known for certain.

    `partly`: also those of which only some are known; else these stay without any, which says that they are unknown.
    """
    lost = {rank: view for rank, view in views.items() if any(not group.ranks for group in view.groups)}
    if not lost:
        return views
    told = _told(views.values(), {group.name for view in lost.values() for group in view.groups if not group.ranks})
    found = {key: _members(key, told, world_size) for key in told.holders}
    completed = {
        rank: replace(view, groups=tuple(_completed(group, found, world_size, partly) for group in view.groups))
        for rank, view in lost.items()
    }
    return {rank: completed.get(rank, view) for rank, view in views.items()}


def _key(group: GroupView) -> _Key:
    known = group.size or group.members_digest
    return group.name, group.size, group.members_digest, None if known else group.site


def _told(views: Iterable[RankView], names: set[str]) -> _Told:
    told = _Told()
    for view in views:
        for group in view.groups:
            if group.name not in names:
                continue
            if group.ranks:
                digest = group.members_digest or digest_of(group.ranks)
                told.lists.setdefault((group.name, len(group.ranks), digest, None), group.ranks)
            else:
                told.holders.setdefault(_key(group), []).append(view.rank)
    return told


def _members(key: _Key, told: _Told, world_size: int) -> tuple[int, ...]:
    """Return the members of a group, all or some: these are the ranks that have recorded it."""
    _, size, digest, _ = key
    if key in told.lists:
        return told.lists[key]
    if size == world_size or (0 < size <= GROUP_MEMBERS_MAX and digest == digest_of_all(size)):
        return tuple(range(size))
    return tuple(sorted(set(told.holders[key])))


def _completed(group: GroupView, found: Mapping[_Key, tuple[int, ...]], world_size: int, partly: bool) -> GroupView:
    if group.ranks:
        return group
    ranks = found[_key(group)]
    size = max(group.size or world_size, len(ranks))  # where nobody said how many they are, all may belong to it
    return replace(group, ranks=ranks, size=size) if partly or size == len(ranks) else group
