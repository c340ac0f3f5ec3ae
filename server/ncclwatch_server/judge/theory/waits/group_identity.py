"""Tells groups of one name apart: a group is its name and its members.

torch names a group by how many a rank has made before it. Where one side has made a group more, ranks hold different
groups under one name from then on, and what they issued there has nothing to do with each other.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from ncclwatch.contract.model.rank import GroupView, OpView, RankView
from ncclwatch.contract.ring.members import digest_of

APART = "@"  # between a group's name and what tells it from another one of that name

_Lists = dict[str, dict[tuple[int, ...], int]]  # by name: lists of members, and how many ranks hold each


def name_of(group: str) -> str:
    """Return a group's name as torch has it."""
    return group.partition(APART)[0]


def told_apart(views: Mapping[int, RankView]) -> Mapping[int, RankView]:
    """Return views in which groups of one name and other members have names of their own.

    The list that most ranks hold keeps the name. Where not all members of a group are known it may be any.
    """
    clashing = {name: lists for name, lists in _lists(views.values()).items() if len(lists) > 1}
    if not clashing:
        return views
    names = {
        (name, ranks): name if number == 0 else f"{name}{APART}{digest_of(ranks):016x}"
        for name, lists in clashing.items()
        for number, ranks in enumerate(sorted(lists, key=lambda ranks: (-lists[ranks], ranks)))
    }
    return {rank: _renamed(view, clashing, names) for rank, view in views.items()}


def _lists(views: Iterable[RankView]) -> _Lists:
    # By the list itself: the ranks of a group share one, and to look a long one up takes as long as to read it.
    held: dict[tuple[str, int], tuple[tuple[int, ...], int]] = {}
    for view in views:
        for group in view.groups:
            if not group.unnamed:
                key = group.name, id(group.ranks)
                held[key] = group.ranks, held[key][1] + 1 if key in held else 1
    found: _Lists = {}
    for (name, _), (ranks, count) in held.items():
        lists = found.setdefault(name, {})
        lists[ranks] = lists.get(ranks, 0) + count
    return found


def _renamed(view: RankView, clashing: Container[str], names: Mapping[tuple[str, tuple[int, ...]], str]) -> RankView:
    own = {
        group.name: names[group.name, group.ranks]
        for group in view.groups
        if group.name in clashing and names.get((group.name, group.ranks), group.name) != group.name
    }
    if not own:
        return view

    def op(each: OpView) -> OpView:
        return replace(each, group=own[each.group]) if each.group in own else each

    def group(each: GroupView) -> GroupView:
        pending = op(each.pending) if each.pending is not None else None
        return replace(each, name=own.get(each.name, each.name), pending=pending)

    return replace(
        view,
        groups=tuple(map(group, view.groups)),
        history=tuple(map(op, view.history)),
        peers=tuple(replace(peer, group=own.get(peer.group, peer.group)) for peer in view.peers),
        threads=tuple(
            replace(thread, wait=replace(thread.wait, group=own[thread.wait.group]))
            if thread.wait is not None and thread.wait.group in own
            else thread
            for thread in view.threads
        ),
    )
