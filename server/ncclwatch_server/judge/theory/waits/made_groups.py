"""Finds the first group that ranks made differently: one side made one more, and all later ones go by other names.

torch counts the groups that a rank makes (`_process_group_name` in its distributed_c10d) and names them by that count:
"1" is the first after the default group. A rank is a member of what it holds, and of what it waits for in new_group.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from ncclwatch.contract.model.rank import CallSite, RankView, WaitKind, WaitView
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.waits.group_identity import name_of

MAKING_S = 3.0  # in new_group: who is no member of what it makes has left it by then


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The group that some ranks have made as the n-th one."""

    ranks: tuple[int, ...]  # who made it so
    members: tuple[int, ...]  # () while it is made: then these ranks are members, and who else is not known
    site: CallSite | None  # where new_group was called; None: nobody recorded it


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """A number at which ranks have made different groups."""

    number: int
    extra: tuple[Made, ...]  # which the others did not make; all of them where nobody can tell
    usual: Made | None  # what was due; None: nobody can tell
    decided: bool = False  # whether most ranks have made what was due, or most the extra ones
    missed: bool = False  # whether most have made the extra ones: the others should have
    shared: bool = False  # whether all of them are still made, under one name
    swapped: bool = False  # whether the others make the extra ones too, later
    held: Mapping[int, int] = field(default_factory=dict)  # of members that make one: groups known, or made, before
    alone: bool = False  # whether they make it alone, and the number of those that they know counts


_Makings = Mapping[int, tuple[tuple[int, ...], CallSite | None]]  # by number: members, and where


def unequal_groups(views: Mapping[int, RankView]) -> Unequal | None:
    """Return the first number at which ranks have made groups that cannot both be right, None if there is none."""
    made = {rank: found for rank, view in views.items() if (found := _makings(view))}
    by_number: dict[int, dict[tuple[tuple[int, ...], CallSite | None], list[int]]] = {}
    for rank, found in made.items():
        for number, (members, site) in found.items():
            # Who holds a list has it for certain, whatever line made it; who still makes one is told by the line.
            by_number.setdefault(number, {}).setdefault((members, None if members else site), []).append(rank)
    for number in sorted(by_number):
        sides = [
            Made(ranks=tuple(ranks), members=members, site=made[ranks[0]][number][1])
            for (members, _), ranks in by_number[number].items()
        ]
        swapped = _swapped(number, sides, views)
        if swapped is not None:
            return swapped
        sides = _joined(sides)
        if any(_clash(one, other) for one in sides for other in sides):
            return _unequal(number, sides, made)
    return None


def unequal_numbers(waits: Mapping[int, WaitView]) -> Unequal | None:
    """Return who takes part in the making of one group as another one, by its number, than the others."""
    counts = {rank: wait.seq for rank, wait in waits.items()}
    if not all(counts.values()) or len(set(counts.values())) < 2:
        return None
    return _by_count(counts, waits)


def unequal_members(waits: Mapping[int, WaitView]) -> Unequal | None:
    """Return the first number under which ranks make groups of different members that share one, None if there is none.

    They find each other in the store by that number, and by their places among the members.
    """
    by_number: dict[int, dict[tuple[int, ...], list[int]]] = {}
    for rank, wait in sorted(waits.items()):
        if wait.seq and wait.members:
            by_number.setdefault(wait.seq, {}).setdefault(wait.members, []).append(rank)
    for number, sides in sorted(by_number.items()):
        if any(not set(one).isdisjoint(other) for one, other in combinations(sides, 2)):
            extra = (
                Made(ranks=tuple(ranks), members=members, site=waits[ranks[0]].site) for members, ranks in sides.items()
            )
            return Unequal(number=number, extra=tuple(extra), usual=None, shared=True)
    return None


def unequal_names(views: Mapping[int, RankView], waits: Mapping[int, WaitView]) -> Unequal | None:
    """Return who takes part in the making of one group by another name than the others, None if nobody does.

    torch takes how many groups a rank knows into the name of one that only its members make (`_hash_ranks_to_str`).
    """
    held = {rank: views[rank].groups_held for rank in waits}
    if not all(held.values()) or len(set(held.values())) < 2:
        return None
    return replace(_by_count(held, waits), alone=True)


def _by_count(counts: Mapping[int, int], waits: Mapping[int, WaitView]) -> Unequal:
    """Return who counted another number of groups than most."""
    by_count: dict[int, list[int]] = {}
    for rank, count in sorted(counts.items()):
        by_count.setdefault(count, []).append(rank)
    sides = [Made(ranks=tuple(ranks), members=(), site=waits[ranks[0]].site) for ranks in by_count.values()]
    most = majority([side.ranks for side in sides])
    usual = next((side for side in sides if side.ranks is most), None)
    extra = tuple(side for side in sides if side is not usual)
    return Unequal(number=0, extra=extra, usual=usual, decided=usual is not None, held=counts)


def by_most(found: Unequal, waits: Mapping[int, WaitView]) -> Unequal:
    """Return a difference with who is right in it: whoever most agree with.

    Who will not be in a group is told by the number under which it makes a later one with the others.
    """
    if found.usual is None or found.swapped:
        return replace(found, decided=found.swapped)
    extra = _agreeing([rank for side in found.extra for rank in side.ranks], waits)
    usual = _agreeing(found.usual.ranks, waits)
    most = majority([tuple(extra - usual), tuple(usual - extra)])
    missed = most is not None and set(most) == extra - usual
    # Two sides that hold groups may each make their own only.
    unsure = missed and bool(found.usual.members)
    return replace(found, decided=most is not None and not unsure, missed=missed and not unsure)


def _agreeing(ranks: Iterable[int], waits: Mapping[int, WaitView]) -> set[int]:
    """Return ranks, and those that make the same group under the same number as one of them."""
    made = {(waits[rank].site, waits[rank].seq) for rank in ranks if rank in waits}
    return {*ranks, *(rank for rank, wait in waits.items() if (wait.site, wait.seq) in made)}


def _swapped(number: int, sides: list[Made], views: Mapping[int, RankView]) -> Unequal | None:
    """Return groups without a common member that have got one name, None where some of their members may yet come.

    Members of one have met members of the other by the same keys of the store, and those left over meet nobody.
    """
    held = [side for side in sides if side.members]
    making = {rank: wait for rank, view in views.items() for wait in _waits(view) if wait.seq >= number}
    short = [side for side in held if not set(side.members) <= set(side.ranks)]
    left_over = {rank for side in short for rank in side.members if rank not in side.ranks}
    if len(short) < 2 or len(short) != len(held) or not left_over <= set(making):
        return None
    if any(not set(one.members).isdisjoint(other.members) for one in held for other in held if one is not other):
        return None
    later = {wait.members for wait in making.values() if wait.seq > number}
    extra = tuple(side for side in held if side.members in later)
    usual = [side for side in held if side not in extra]
    if not extra or len(usual) != 1:
        return None
    return Unequal(number=number, extra=extra, usual=usual[0], swapped=True)


def _waits(view: RankView) -> list[WaitView]:
    waits = (thread.wait for thread in view.threads if thread.wait is not None)
    return [wait for wait in waits if wait.kind is WaitKind.NEW_GROUP and wait.seq and wait.age_s >= MAKING_S]


def _joined(sides: list[Made]) -> list[Made]:
    """Return sides with those that still make a group joined to those of its members that have made it at that line."""
    done = [side for side in sides if side.members]
    found = []
    for side in sides:
        own = next((d for d in done if not side.members and _is_part(side, d)), None)
        if own is None:
            late = [rank for each in sides if not each.members and _is_part(each, side) for rank in each.ranks]
            found.append(replace(side, ranks=tuple(sorted({*side.ranks, *late}))))
    return found


def _is_part(making: Made, done: Made) -> bool:
    return making.site is not None and making.site == done.site and set(making.ranks) <= set(done.members)


def _makings(view: RankView) -> dict[int, tuple[tuple[int, ...], CallSite | None]]:
    found = {
        int(name): (group.ranks, group.site)
        for group in view.groups
        if (name := name_of(group.name)).isdecimal() and name != "0" and not group.unnamed
    }
    for wait in _waits(view):
        found.setdefault(wait.seq, ((), wait.site))
    return found


def _clash(one: Made, other: Made) -> bool:
    """Say whether a member of a group that is held has, or makes, another one by that name."""
    if not one.members or one.members == other.members:
        return False
    if not other.members:  # `other.ranks` are members of what they make
        return any(rank not in one.members for rank in other.ranks) and not set(other.ranks) & set(one.ranks)
    return not set(one.members).isdisjoint(other.ranks)


def _unequal(number: int, sides: list[Made], made: Mapping[int, _Makings]) -> Unequal:
    """Return who made one more: those that made what the others made at this number as a later one of theirs."""
    for usual in sides:
        others = tuple(side for side in sides if side is not usual)
        if all(_made_later(made[side.ranks[0]], number, side, usual) for side in others):
            return Unequal(number=number, extra=others, usual=usual)
    # A group whose members all hold it is done; one whose members hold others instead cannot be.
    done = tuple(side for side in sides if side.members and set(side.members) <= set(side.ranks))
    left = [side for side in sides if side not in done]
    if done and len(left) == 1 and all(side.site is None or side.site != left[0].site for side in done):
        return Unequal(number=number, extra=done, usual=left[0])
    return Unequal(number=number, extra=tuple(sides), usual=None)


def _made_later(own: _Makings, number: int, side: Made, usual: Made) -> bool:
    """Say whether a side came to the usual group later; a line that makes both of them does not tell which it makes."""
    told = usual.site if usual.site != side.site else None
    return any(
        (members and members == usual.members) or (site is not None and site == told)
        for later, (members, site) in own.items()
        if later > number
    )
