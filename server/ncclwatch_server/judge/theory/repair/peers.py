"""Compares what a rank did with what its peers did: the first of two references for what it should have done.

Ranks of one program make the same calls, each in its own groups. So calls are compared by their role: line, arguments,
position of the root, and the axis of the group. An axis is a set of groups that share no rank and are called from the
same lines, such as all tensor-parallel groups. Two ranks are compared in the axes that both have a group of; a line
belongs to the axis that is used there most. Two lines that are branches of one call count as one.

Sends and receives are compared between ranks that talk to peers at the same distances, such as one stage of two
replicas. Between other stages all of them in a row count as one.

Two ranks that differ between most of their meetings, and from the first ones on, do so by design: they are no
reference for each other.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge.theory.repair.lines import Place, one_of_two, place_of
from ncclwatch_server.judge.theory.repair.routine import CONTEXT
from ncclwatch_server.judge.theory.repair.tapes import Call, End, Tapes

Axes = frozenset[str]
MEETINGS_MIN = 3  # between which two ranks must have differed
LINKS_MAX = 16  # of the groups that are called from one line: each is compared with the first ones and the next ones


class Roles:
    """The roles of all calls, and for each rank the axes that it has a group of."""

    def __init__(self, tapes: Tapes) -> None:
        self.tapes = tapes
        self.calls: list[Call] = list(tapes.calls)  # grows with calls that edits put in
        self._numbers = {call: number for number, call in enumerate(self.calls)}
        self._one_of_two = one_of_two(tapes)
        uses = _uses(tapes)
        self.axis_of = _axes(tapes, uses)
        self.axis_at = {place: self._most_used(groups) for place, groups in uses.items()}
        self.group_in: dict[tuple[int, str], str] = {}  # (rank, axis) -> its group
        self.axes_of: dict[int, set[str]] = {}  # by rank
        for group, members in tapes.groups.items():
            for rank in members:
                self.group_in[rank, self.axis_of[group]] = group
                self.axes_of.setdefault(rank, set()).add(self.axis_of[group])
        self._roles: dict[object, int] = {}
        self._of: dict[tuple[int, int], int] = {}
        self._lines: dict[object, int] = {}
        self._line_of: dict[int, int] = {}
        self.talks_in: dict[int, set[str]] = {}  # by rank: axes in which it sends or receives
        self.stage_of = {rank: self._stage(rank) for rank in tapes.by_rank}

    def _most_used(self, groups: Mapping[str, int]) -> str:
        counts: dict[str, int] = {}
        for group, count in groups.items():
            axis = self.axis_of.get(group, group)
            counts[axis] = counts.get(axis, 0) + count
        return max(sorted(counts), key=lambda axis: counts[axis])

    def number(self, call: Call) -> int:
        """Return the number of a call, a new one if nobody has made it."""
        found = self._numbers.get(call)
        if found is None:
            found = self._numbers[call] = len(self.calls)
            self.calls.append(call)
        return found

    def role(self, rank: int, number: int) -> int:
        """Return the role of a call that a rank makes."""
        call = self.calls[number]
        key = (rank if call.op.is_p2p else -1, number)
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = self._roles.setdefault(self._role(rank, call), len(self._roles))
        return found

    def _role(self, rank: int, call: Call) -> object:
        axis = self.axis_of.get(call.group, call.group)
        numel = 0 if call.op is Op.ALL_GATHER else call.numel
        if call.op.is_p2p:
            place: object = self._distance(rank, call)
        else:
            members = self.tapes.groups.get(call.group, ())
            place = members.index(call.peer) if call.peer in members else call.peer
        line = place_of(call)
        line = self._one_of_two.get(line, line)
        return axis, call.op, place, call.tag, numel, call.dtype, call.reduce_op, line, call.waits

    def _distance(self, rank: int, call: Call) -> int | None:
        members = self.tapes.groups.get(call.group, ())
        if call.peer in members and rank in members:
            return members.index(call.peer) - members.index(rank)
        return None

    def _stage(self, rank: int) -> str:
        """Return a name for the distances at which a rank sends and receives."""
        calls = {self.calls[number] for number in set(self.tapes.by_rank[rank].calls)}
        found = {
            (self.axis_of.get(call.group, call.group), call.op.value, self._distance(rank, call))
            for call in calls
            if call.op.is_p2p
        }
        self.talks_in[rank] = {axis for axis, _, _ in found}
        return f"p2p {sorted(found, key=str)}" if found else ""

    def line(self, number: int) -> int:
        """Return a number for the line, operation and group of a call, whatever its other arguments; -1: not known."""
        found = self._line_of.get(number)
        if found is None:
            call = self.calls[number]
            key = (call.site, call.way, call.op, call.group, call.waits)
            found = self._lines.setdefault(key, len(self._lines)) if call.site is not None else -1
            self._line_of[number] = found
        return found

    def row(self, number: int) -> int:
        """Return the role of a row of sends and receives in the axis of a call."""
        call = self.calls[number]
        key = ("row", self.axis_of.get(call.group, call.group))
        return self._roles.setdefault(key, len(self._roles))

    def axes(self, rank: int, number: int) -> tuple[str, str]:
        """Return in which axes a call of a rank is compared: by itself, and as one of a row."""
        call = self.calls[number]
        axis = self.axis_of.get(call.group, call.group)
        if call.op.is_p2p:
            return self.stage_of[rank], f"rows of {axis}"
        return self.axis_at.get((call.site, call.way), axis), ""

    def shared(self, one: int, other: int) -> Axes:
        """Return the axes in which two ranks are compared."""
        axes = self.axes_of.get(one, set()) & self.axes_of.get(other, set())
        if self.stage_of[one] == self.stage_of[other]:
            axes.add(self.stage_of[one])
        else:
            axes |= {f"rows of {axis}" for axis in self.talks_in[one] & self.talks_in[other]}
        return frozenset(axes - {""})

    def as_made_by(self, rank: int, other: int, number: int) -> int | None:
        """Return the call of `other` as `rank` makes it in its own groups; None where it has none."""
        call = self.calls[number]
        group = self.group_in.get((rank, self.axis_of.get(call.group, call.group)))
        if group is None:
            return None
        members, theirs = self.tapes.groups[group], self.tapes.groups[call.group]
        peer = call.peer
        if call.op.is_p2p:
            distance = self._distance(other, call)
            place = members.index(rank) + distance if distance is not None else -1
            if not 0 <= place < len(members):
                return None
            peer = members[place]
        elif peer in theirs:
            place = theirs.index(peer)
            if place >= len(members):
                return None
            peer = members[place]
        return self.number(replace(call, group=group, peer=peer))


def _uses(tapes: Tapes) -> dict[Place, dict[str, int]]:
    """Return how often each group is used at each place of the source."""
    found: dict[Place, dict[str, int]] = {}
    for tape in tapes.by_rank.values():
        for number, count in Counter(tape.calls).items():
            call = tapes.calls[number]
            if call.site is not None:
                groups = found.setdefault((call.site, call.way), {})
                groups[call.group] = groups.get(call.group, 0) + count
    return found


def _axes(tapes: Tapes, uses: Mapping[Place, Mapping[str, int]]) -> dict[str, str]:
    """Return the axis of each group, by the name of one of its groups.

    Groups that are called from the same lines and share no rank belong together, those with the most such calls first.
    """
    links: dict[tuple[str, str], int] = {}
    for groups in uses.values():
        names = sorted(groups)
        for at, one in enumerate(names):
            for other in names[at + 1 : at + 1 + (len(names) if at < LINKS_MAX else LINKS_MAX)]:
                links[one, other] = links.get((one, other), 0) + min(groups[one], groups[other])
    axes = {name: name for name in tapes.groups}
    names_of = {name: [name] for name in tapes.groups}
    ranks = {name: set(members) for name, members in tapes.groups.items()}
    for one, other in sorted(links, key=lambda pair: (-links[pair], pair)):
        first, second = axes.get(one, one), axes.get(other, other)
        if first != second and first in ranks and second in ranks and ranks[first].isdisjoint(ranks[second]):
            if len(names_of[first]) < len(names_of[second]):
                first, second = second, first
            ranks[first] |= ranks.pop(second)
            axes |= dict.fromkeys(names_of[second], first)
            names_of[first] += names_of.pop(second)
    return axes


class Strip:
    """The roles of a tape in some axes, with their places on the tape."""

    __slots__ = ("end", "places", "roles")

    def __init__(self, roles: tuple[int, ...], places: tuple[int, ...], end: End) -> None:
        self.roles, self.places, self.end = roles, places, end

    def between(self, begin: int, end: int) -> tuple[int, ...]:
        """Return the roles of calls after one place of the tape and before another one."""
        return self.roles[bisect_right(self.places, begin) : bisect_left(self.places, end)]


def strip(roles: Roles, rank: int, calls: Sequence[int], axes: Axes, end: End, *, after: int = -1) -> Strip:
    """Return the strip of some calls of a rank; `after` is the role that the strip had until then."""
    kept: dict[int, tuple[int, bool]] = {}
    for number in set(calls):
        single, row = roles.axes(rank, number)
        if single in axes:
            kept[number] = roles.role(rank, number), False
        elif row in axes:
            kept[number] = roles.row(number), True
    found, places = [], []
    for place, number in enumerate(calls):
        if number in kept:
            role, is_row = kept[number]
            if not (is_row and role == after):
                found.append(role)
                places.append(place)
            after = role
    return Strip(tuple(found), tuple(places), end)


def parting(one: Strip, other: Strip) -> int:
    """Return at which index two strips part; -1: as far as both go, they do not.

    A rank that has ended well parts from one that has made more calls.
    """
    mine, theirs = one.roles, other.roles
    shorter = min(len(mine), len(theirs))
    if mine[:shorter] != theirs[:shorter]:
        return next(at for at in range(shorter) if mine[at] != theirs[at])
    if len(mine) != len(theirs):
        first_ended = one.end if len(mine) < len(theirs) else other.end
        return shorter if first_ended is End.GONE else -1
    return -1


class Peers:
    """How all ranks of a job compare. Ranks that did the same are compared once."""

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        by_likeness: dict[tuple[object, ...], list[int]] = {}
        for rank, tape in roles.tapes.by_rank.items():
            made = {number: roles.role(rank, number) for number in set(tape.calls)}
            likeness = (
                tuple(made[number] for number in tape.calls), tape.stop, tape.end,
                frozenset(roles.axes_of.get(rank, ())), roles.stage_of[rank],
            )  # fmt: skip
            by_likeness.setdefault(likeness, []).append(rank)
        self.classes = list(by_likeness.values())
        self.class_of = {rank: at for at, ranks in enumerate(self.classes) for rank in ranks}
        self._strips: dict[tuple[int, Axes], Strip] = {}
        self._shared: dict[tuple[int, int], Axes] = {}
        self._met: dict[int, Mapping[tuple[str, int], int]] = {}
        self._ways: dict[tuple[int | str, ...], list[list[int]]] | None = (
            None  # who made three calls one after the other
        )
        self.partings: dict[tuple[int, int], int] = {}  # (class, other): place on the first one's tape
        self.by_design: set[tuple[int, int]] = set()  # classes that always differ
        for at in range(len(self.classes)):
            for other in range(at):
                self._compare(at, other)
        self.disagreeing = {  # with how many ranks each rank disagrees
            at: sum(len(self.classes[other]) for other in range(len(self.classes)) if (at, other) in self.partings)
            for at in range(len(self.classes))
        }
        self.total = sum(len(ranks) * self.disagreeing[at] for at, ranks in enumerate(self.classes)) // 2

    def alone_in(self, rank: int, calls: Sequence[int], breaks: Sequence[int]) -> list[int]:
        """Return the indices of broken routine at which no other rank has gone the same way.

        What others did, too, is a way of the program that this rank had not come to before.
        """
        if not breaks:
            return []
        if self._ways is None:
            self._ways = {}
            for ranks in self.classes:
                for way in self._ways_of(ranks[0]):
                    self._ways.setdefault(way, []).append(ranks)
        found = []
        for at in breaks:
            way = self._way(rank, calls[max(at - CONTEXT, 0) : at + 1])
            if all(ranks == [rank] for ranks in self._ways.get(way, ())):
                found.append(at)
        return found

    def _ways_of(self, rank: int) -> set[tuple[int | str, ...]]:
        tape = self.roles.tapes.by_rank[rank]
        made = tape.calls[: tape.stop + 1]
        ways = set(zip(*(made[at:] for at in range(CONTEXT + 1)), strict=False))
        return {self._way(rank, way) for way in ways}

    def _way(self, rank: int, calls: Sequence[int]) -> tuple[int | str, ...]:
        """Return some calls in a row by their roles; sends and receives are a matter of the stage."""
        talks = any(self.roles.calls[number].op.is_p2p for number in calls)
        stage = self.roles.stage_of[rank] if talks else ""
        return (stage, *(self.roles.role(rank, number) for number in calls))

    def shared(self, at: int, other: int) -> Axes:
        """Return the axes in which two classes are compared; all of its own with a class itself."""
        key = (at, other) if at < other else (other, at)
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = self.roles.shared(self.classes[key[0]][0], self.classes[key[1]][0])
        return found

    def strip(self, at: int, axes: Axes) -> Strip:
        """Return the strip of a class."""
        found = self._strips.get((at, axes))
        if found is None:
            rank = self.classes[at][0]
            tape = self.roles.tapes.by_rank[rank]
            found = self._strips[at, axes] = strip(self.roles, rank, tape.calls, axes, tape.end)
        return found

    def _compare(self, at: int, other: int) -> None:
        axes = self.shared(at, other)
        one, two = self.strip(at, axes), self.strip(other, axes)
        index = parting(one, two)
        if index >= 0 and self._always_differ(at, other, one, two):
            self.by_design |= {(at, other), (other, at)}
        elif index >= 0:
            for each, peer, made in ((at, other, one), (other, at, two)):
                tape = self.roles.tapes.by_rank[self.classes[each][0]]
                self.partings[each, peer] = made.places[index] if index < len(made.places) else len(tape.calls)

    def _always_differ(self, at: int, other: int, one: "Strip", two: "Strip") -> bool:
        """Say whether two classes differ between most of their meetings in a group, and from the first ones on."""
        mine, theirs = (self._meetings(each) for each in (at, other))
        shared = {meeting for meeting in mine if meeting in theirs}
        counts = Counter(group for group, _ in shared)
        if not counts:
            return False
        group = min(counts, key=lambda name: (counts[name] < MEETINGS_MIN, counts[name], name))
        ends = sorted(seq for name, seq in shared if name == group)
        places = [(mine[group, seq], theirs[group, seq]) for seq in ends]
        differs = [
            one.between(begin[0], end[0]) != two.between(begin[1], end[1])
            for begin, end in pairwise([(-1, -1), *places])
        ]
        return len(differs) >= MEETINGS_MIN and all(differs[:2]) and 2 * sum(differs) > len(differs)

    def _meetings(self, at: int) -> Mapping[tuple[str, int], int]:
        """Return where on its tape a class has made which collective of which group, as far as it is through."""
        found = self._met.get(at)
        if found is None:
            tape = self.roles.tapes.by_rank[self.classes[at][0]]
            calls = ((place, self.roles.calls[number]) for place, number in enumerate(tape.calls[: tape.stop]))
            found = self._met[at] = {
                (call.group, tape.seqs[place]): place for place, call in calls if not call.op.is_p2p
            }  # fmt: skip
        return found

    def disagreements(self, rank: int, calls: Sequence[int], end: End, since: int) -> int:
        """Return how many pairs of ranks disagree if a rank does something else from index `since` of its tape on."""
        others = self.total - self.disagreeing[self.class_of[rank]]
        return others + sum(self.against(rank, calls, end, since).values())

    def against(self, rank: int, calls: Sequence[int], end: End, since: int) -> Mapping[int, int]:
        """Return with how many ranks of which classes a rank disagrees if it does something else from an index on."""
        own = self.class_of[rank]
        found = {}
        for other, ranks in enumerate(self.classes):
            count = len(ranks) - (other == own)
            if count and self._parts(own, other, rank, calls, end, since):
                found[other] = count
        return found

    def _parts(self, own: int, other: int, rank: int, calls: Sequence[int], end: End, since: int) -> bool:
        if (own, other) in self.by_design:
            return False
        place = self.partings.get((own, other), since)
        if place < since:
            return True
        axes = self.shared(own, other)
        kept = self._kept(own, axes, since)
        before = self.strip(own, axes).roles[kept - 1] if kept else -1
        tail = strip(self.roles, rank, calls[since:], axes, end, after=before)
        theirs = self.strip(other, axes)
        return parting(tail, Strip(theirs.roles[kept:], (), theirs.end)) >= 0

    def _kept(self, own: int, axes: Axes, since: int) -> int:
        places = self.strip(own, axes).places
        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if places[middle] < since else (low, middle)
        return low
