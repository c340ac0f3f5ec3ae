"""Holds a job that hangs, prepared for replays of its calls with edits, and says how well an edit explains the hang."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from ncclwatch.contract.model.rank import Op
from ncclwatch_server.judge.theory.repair.classes import classes
from ncclwatch_server.judge.theory.repair.cuts import Counts, common_cut, cut, first_cut
from ncclwatch_server.judge.theory.repair.edits import Change, Departures, Edit, departures
from ncclwatch_server.judge.theory.repair.lines import Place, place_of
from ncclwatch_server.judge.theory.repair.peers import Peers, Roles
from ncclwatch_server.judge.theory.repair.replay import Outcome, Script, Stage, play
from ncclwatch_server.judge.theory.repair.tapes import End, Tape, Tapes, without_start

# Calls to change, pairs of ranks that disagree, calls against a rank's own routine, and calls that come too early or
# too late.
Score = tuple[int, int, int, int]
JOINS_MAX = 5  # times that lines are added at which ranks wait for asynchronous collectives
WORK_MAX = 1_000_000  # calls that are replayed or compared in one search: about a second and a half
CLASSES_FROM = 16  # ranks; with fewer of them, finding who does the same takes longer than to replay them all


class Failure(Enum):
    """Why there is no answer."""

    MOVING = "nobody waits for ever"
    INCOMPLETE = "the histories do not lead to the state that was observed"
    UNEXPLAINED = "no small change ends the hang"
    COSTLY = "there are too many changes to try"


class TooCostlyError(Exception):
    """A search would take longer than a verdict may."""


def settle(tapes: Tapes, counts: Counts) -> Tapes | None:
    """Return tapes with the stops of devices to which a replay leads; None: it does not lead to what was observed."""
    loose = {rank: tape for rank, tape in tapes.by_rank.items() if 0 <= tape.through < tape.stop}
    if not loose:
        return tapes
    reached = {rank: tape.through if rank in loose else tape.stop for rank, tape in tapes.by_rank.items()}
    start = cut(counts, reached)
    if start is None:
        return None
    scripts = [script_from(tapes, tape, start[rank]) for rank, tape in tapes.by_rank.items()]
    bounds = [(reached[rank] - start[rank], tape.stop - start[rank]) for rank, tape in tapes.by_rank.items()]
    way = find_way(lambda joins: Stage(tapes, joins=joins), scripts, bounds)
    if way is None:
        return None
    stops = {rank: at + start[rank] for rank, at in zip(tapes.by_rank, way.outcome.at, strict=True)}
    by_rank = {
        rank: replace(tape, stop=stops[rank], through=-1) if rank in loose else tape
        for rank, tape in tapes.by_rank.items()
    }  # fmt: skip
    return replace(tapes, by_rank=by_rank)


class Way(NamedTuple):
    """How calls have to be replayed to come to what was observed."""

    joins: frozenset[Place]  # lines that wait for asynchronous collectives
    eager: bool
    outcome: Outcome


def find_way(
    staged: Callable[[frozenset[Place]], Stage], scripts: Sequence[Script], bounds: Sequence[tuple[int, int]]
) -> Way | None:
    """Return how to come to a state in which each actor stands within its bounds; None: in no way.

    An actor that comes too far, and has issued a collective asynchronously before, waits for that at the call where it
    stood in truth.
    """
    for eager in (True, False):
        joins: frozenset[Place] = frozenset()
        for _ in range(JOINS_MAX):
            stage = staged(joins)
            outcome = play(stage, scripts, eager=eager)
            wrong = [at for at, (low, high) in enumerate(bounds) if not low <= outcome.at[at] <= high]
            if not wrong:
                return Way(joins, eager, outcome)
            more = {place for at in wrong for place in _joining(stage, scripts[at], outcome.at[at], bounds[at][1])}
            if more <= joins:
                break
            joins |= more
    return None


def _joining(stage: Stage, script: Script, at: int, high: int) -> Iterator[Place]:
    calls = [stage.tapes.calls[number] for number in script.calls[: high + 1]]
    if at > high and calls[-1].waits and any(not call.waits and not call.op.is_p2p for call in calls):
        yield place_of(calls[-1])


def script_from(tapes: Tapes, tape: Tape, start: int) -> Script:
    """Return what a rank did from an index of its tape on."""
    late = tape.stop < len(tape.calls) and not tapes.calls[tape.calls[tape.stop]].waits
    return Script(tape.calls[start:], tape.end, tape.stop - start if late else -1)


class _Staging(NamedTuple):
    """A stage, and who plays on it."""

    stage: Stage
    actors: Sequence[Sequence[int]]  # the ranks of each actor


class Hang:
    """A job that hangs, prepared for replays with edits."""

    def __init__(self, tapes: Tapes) -> None:
        counts = Counts(tapes)
        self.is_whole = counts.is_whole
        # Of a group whose members nobody knows it cannot be said who has to come.
        known = all(call.group in tapes.groups for call in tapes.calls)
        start = first_cut(counts) if known else None
        self.is_aligned = self.is_whole  # whether all tapes begin at one point of the program
        if start is not None and not self.is_whole:
            common = common_cut(counts, start)
            self.is_aligned = common is not None
            start = common or start
        if start is not None and any(start.values()):
            tapes = without_start(tapes, start)
            counts = Counts(tapes)
        settled = settle(tapes, counts) if start is not None else None
        start = start if settled is not None else None
        tapes = settled or tapes
        self.roles = Roles(tapes)
        self.tapes = tapes
        self.peers = Peers(self.roles)
        self._departed: dict[int, Departures] = {}
        self._staging: tuple[frozenset[int], _Staging] | None = None
        self.breaks = sum(len(ranks) * self.departed(ranks[0]).breaks for ranks in self.peers.classes)
        self.off_beat = sum(len(ranks) * self.departed(ranks[0]).off_beat for ranks in self.peers.classes)
        self.replays = 0
        self._work = 0
        self.failure: Failure | None = Failure.INCOMPLETE
        self.cut: Mapping[int, int] = {}
        self.stuck: frozenset[int] = frozenset()  # ranks that wait for ever
        self.joins: frozenset[Place] = frozenset()
        self.eager = True
        if start is not None:
            self._begin(counts)

    def _begin(self, counts: Counts) -> None:
        """Replay what was recorded: it must lead to what was observed."""
        first = {
            rank: min(self.departed(ranks[0]).places, default=0) for ranks in self.peers.classes for rank in ranks
        }  # fmt: skip
        found = cut(counts, first)
        if found is None:
            return
        self.cut = found
        staging = self._staging_for(frozenset())
        leads = [ranks[0] for ranks in staging.actors]
        stops = [self.tapes.by_rank[rank].stop - found[rank] for rank in leads]
        way = find_way(self._staged, [self.scripts[rank] for rank in leads], [(stop, stop) for stop in stops])
        if way is not None:
            self.eager = way.eager
            stuck = (self._staging_for(frozenset()).actors[actor] for actor in way.outcome.stuck)
            self.stuck = frozenset(rank for ranks in stuck for rank in ranks)
            self.failure = None if self.stuck else Failure.MOVING

    def _staged(self, joins: frozenset[Place]) -> Stage:
        if joins != self.joins:
            self.joins, self._staging = joins, None
        return self._staging_for(frozenset()).stage

    def departed(self, rank: int) -> Departures:
        """Return where a rank may have departed."""
        found = self._departed.get(rank)
        if found is None:
            found = self._departed[rank] = departures(self.peers, rank)
        return found

    def _staging_for(self, alone: frozenset[int]) -> _Staging:
        """Return a stage on which some ranks can do something else than those like them."""
        if self._staging is not None and self._staging[0] == alone:
            return self._staging[1]
        calls = Tapes(
            calls=self.roles.calls, groups=self.tapes.groups, by_rank=self.tapes.by_rank, unseen=self.tapes.unseen,
            on_device=self.tapes.on_device,
        )  # fmt: skip
        ranks = list(self.tapes.by_rank)
        many = len(ranks) >= CLASSES_FROM
        found = classes(self.peers, self.cut, alone) if many else None
        if found is None:
            if self._staging is not None and not many:
                return self._staging[1]
            staging = _Staging(Stage(calls, joins=self.joins), [[rank] for rank in ranks])
        else:
            actors: list[list[int]] = [[] for _ in range(max(found.class_of.values()) + 1)]
            for rank, actor in found.class_of.items():
                actors[actor].append(rank)
            staging = _Staging(Stage(calls, found.class_of, found.kin, joins=self.joins), actors)
        self._staging = alone, staging
        return staging

    @cached_property
    def scripts(self) -> dict[int, Script]:
        """What each rank did from the cut on."""
        return {rank: script_from(self.tapes, tape, self.cut[rank]) for rank, tape in self.tapes.by_rank.items()}

    def _script(self, tape: Tape, calls: Sequence[int], end: End, moved: int | None) -> Script:
        late = -1
        stops = moved is not None and tape.stop < len(tape.calls)
        if stops and not self.roles.calls[tape.calls[tape.stop]].waits:
            late = tape.stop - self.cut[tape.rank] + (moved or 0)
        return Script(calls[self.cut[tape.rank] :], end, late)

    def script_with(self, edit: Edit) -> Script:
        """Return what the rank of an edit does with it."""
        tape = self.tapes.by_rank[edit.rank]
        calls, end = edit.apply(tape)
        moved: int | None = 0
        if edit.at <= tape.stop:
            moved = len(edit.put) - edit.out if edit.at + edit.out <= tape.stop else None
        return self._script(tape, calls, end, moved)

    @cached_property
    def calls(self) -> int:
        """How many calls a replay has at most."""
        return sum(len(tape.calls) - self.cut.get(rank, 0) for rank, tape in self.tapes.by_rank.items())

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > WORK_MAX:
            raise TooCostlyError

    def passes(self, *changes: Edit) -> bool:
        """Say whether a job with some edits passes every recorded wait."""
        self.replays += 1
        self._spend(self.calls + 4 * len(self.tapes.by_rank))
        staging = self._staging_for(frozenset(edit.rank for edit in changes))
        changed = {edit.rank: self.script_with(edit) for edit in changes}
        scripts = [changed.get(ranks[0]) or self.scripts[ranks[0]] for ranks in staging.actors]
        return not play(staging.stage, scripts, eager=self.eager).stuck

    def alike(self) -> Sequence[Sequence[int]]:
        """Return ranks that may take the place of each other, each rank once."""
        found = classes(self.peers, self.cut) if len(self.tapes.by_rank) >= CLASSES_FROM else None
        if found is None:
            return [[rank] for rank in self.tapes.by_rank]
        ranks: dict[int, list[int]] = {}
        for rank, number in found.class_of.items():
            ranks.setdefault(number, []).append(rank)
        return list(ranks.values())

    def candidates(self) -> frozenset[int]:
        """Return the ranks that wait for ever, and those that they wait for."""
        groups, found = set(), set(self.stuck)
        for rank in self.stuck:
            tape = self.tapes.by_rank[rank]
            call = self.roles.calls[tape.calls[tape.stop]]
            if call.op.is_p2p and call.peer >= 0:
                found.add(call.peer)
            else:
                groups.add(call.group)
        for group in groups:
            found.update(self.tapes.groups.get(group, ()))
        return frozenset(found & self.tapes.by_rank.keys())

    def wanted_of(self, rank: int) -> tuple[int, ...]:
        """Return the parts of a rank in what others wait for."""
        found = []
        for other, tape in self.tapes.by_rank.items():
            if other == rank or tape.stop >= len(tape.calls) or tape.end is not End.BLOCKED:
                continue
            call = self.roles.calls[tape.calls[tape.stop]]
            if call.op.is_p2p and call.peer == rank:
                op = Op.RECV if call.op is Op.SEND else Op.SEND
                found += [
                    number
                    for number in sorted(set(self.tapes.by_rank[rank].calls))
                    if (each := self.roles.calls[number]).op is op and (each.group, each.peer) == (call.group, other)
                ]
            elif not call.op.is_p2p and rank in self.tapes.groups.get(call.group, ()):
                found.append(tape.calls[tape.stop])
        return tuple(dict.fromkeys(found))

    def score(self, edit: Edit) -> Score:
        """Return how well an edit explains what was seen; less is better."""
        found = self.departed(edit.rank)
        self._spend(len(found.tape.calls) - edit.at + 8 * len(self.peers.classes))
        weight = self.weight(edit)
        calls, end = edit.apply(found.tape)
        pairs = self.peers.disagreements(edit.rank, calls, end, min(edit.at, len(found.tape.calls)))
        pairs += self._deserts(edit)
        off_beat = self.off_beat - found.off_beat + self.off_beat_with(edit)
        return weight, pairs, self.breaks - found.breaks + self.breaks_with(edit), off_beat

    def _deserts(self, edit: Edit) -> int:
        """Return how many ranks an edit leaves in the collective in which they wait, if they are most of its group."""
        tape = self.tapes.by_rank[edit.rank]
        if edit.change not in (Change.LEAVE_OUT, Change.REWIND) or edit.at != tape.stop:
            return 0
        call = self.roles.calls[tape.calls[tape.stop]]
        members = self.tapes.groups.get(call.group, ())
        if call.op.is_p2p or len(members) < 3:
            return 0
        there = sum(self._waits_where(rank, tape) for rank in members) - 1
        return there if 2 * (there + 1) > len(members) else 0

    def _waits_where(self, rank: int, other: Tape) -> bool:
        """Say whether a rank waits in the call in which another one waits."""
        tape = self.tapes.by_rank.get(rank)
        if tape is None or tape.stop >= len(tape.calls) or tape.end is not End.BLOCKED:
            return False
        return (tape.seqs[tape.stop], self.roles.role(rank, tape.calls[tape.stop])) == (
            other.seqs[other.stop], self.roles.role(other.rank, other.calls[other.stop]),
        )  # fmt: skip

    def weight(self, edit: Edit) -> int:
        """Return how many calls an edit supposes to be wrong: none where a rank only has to go on."""
        stands = self.tapes.by_rank[edit.rank].end in (End.STANDS, End.FAILED)
        return 0 if stands and edit.change is Change.COME_BACK else 1

    def breaks_with(self, edit: Edit) -> int:
        """Return how often the rank of an edit still breaks its routine."""
        found = self.departed(edit.rank)
        calls, _ = edit.apply(found.tape)
        stop = len(calls) - max(len(found.tape.calls) - found.tape.stop - 1, 0)
        broken = len(self.peers.alone_in(edit.rank, calls, found.routine.breaks(calls, found.since, stop)))
        return broken + self._takes_what_always_came(edit, found)

    def _takes_what_always_came(self, edit: Edit, found: Departures) -> bool:
        """Say whether an edit takes the call in which a rank stands though it has always come there: its routine."""
        tape = found.tape
        if edit.change not in (Change.LEAVE_OUT, Change.REWIND) or edit.at != tape.stop:
            return False
        return found.routine.always(tape.calls[: edit.at]) == tape.calls[edit.at]

    def off_beat_with(self, edit: Edit) -> int:
        """Return how many calls of the rank of an edit still come too early or too late."""
        found = self.departed(edit.rank)
        calls, _ = edit.apply(found.tape)
        stop = len(calls) - max(len(found.tape.calls) - found.tape.stop - 1, 0)
        return found.routine.off_beat(calls, found.since, stop)

    def bound(self, rank: int) -> Score:
        """Return the best score that any edit of a rank could have."""
        found = self.departed(rank)
        weight = 0 if found.tape.end in (End.STANDS, End.FAILED) else 1
        own = self.peers.disagreeing[self.peers.class_of[rank]]
        return weight, self.peers.total - own, self.breaks - found.breaks, self.off_beat - found.off_beat
