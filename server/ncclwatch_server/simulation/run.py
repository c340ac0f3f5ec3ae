"""Runs the ranks of a simulated job until nothing moves any more, and says where each stands then."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ncclwatch_server.simulation.job.faults import Fault, apply
from ncclwatch_server.simulation.job.layout import AXES, Layout
from ncclwatch_server.simulation.job.program import Course, Training, courses

_COLLECTIVE, _SEND, _RECV = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """A job in which no rank can move, that has come to its end, or that was stopped to be looked at."""

    layout: Layout
    faults: tuple[Fault, ...]
    courses: tuple[Course, ...]  # first one for each stage, then those of ranks that made a mistake
    course_of: Sequence[int]  # by rank
    places: Sequence[int]  # by rank: steps that are through
    stopped_at: Sequence[int]  # by rank: the moment, in operations of the whole job, at which it stopped
    moving: bool = False  # seen on the way: nobody waits
    working: bool = False  # who halts works, and will go on

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.layout.world_size

    @cached_property
    def stopped_last(self) -> int:
        """The moment at which the last rank stopped; 1 if none has moved."""
        return max(self.stopped_at) or 1

    @cached_property
    def halted(self) -> dict[int, Fault]:
        """The ranks that stand where a fault halted them."""
        return {f.rank: f for f in self.faults if f.kind.halts and self.places[f.rank] == f.at}

    @cached_property
    def active(self) -> tuple[Fault, ...]:
        """The faults that happened before everything stood."""
        return tuple(f for f in self.faults if self.places[f.rank] >= f.at)

    def course(self, rank: int) -> Course:
        """Return what a rank does."""
        return self.courses[self.course_of[rank]]

    @cached_property
    def blocked(self) -> tuple[int, ...]:
        """The ranks that wait in an operation."""
        if self.moving:
            return ()
        ends = [len(course.steps) for course in self.courses]
        return tuple(
            rank
            for rank, place in enumerate(self.places)
            if place < ends[self.course_of[rank]] and rank not in self.halted
        )


def run(layout: Layout, training: Training, faults: Iterable[Fault], *, steps: int, from_step: int = 0) -> Standstill:
    """Let all ranks go until nothing moves.

    `steps` training steps are in the program; those before `from_step` are taken to be through, which they are when
    no fault lies in them, since each ends with a collective of all ranks.
    """
    known = tuple(faults)
    stages = courses(layout, training, steps)
    all_courses, course_of = _assign(layout, stages, known)
    begin = [len(course.steps) // steps * from_step for course in stages]
    state = _Motion(layout, all_courses, course_of, [begin[layout.stage(rank)] for rank in range(layout.world_size)])
    state.halts = {fault.rank: fault.at for fault in known if fault.kind.halts}
    state.settle()
    return Standstill(
        layout=layout,
        faults=known,
        courses=all_courses,
        course_of=course_of,
        places=state.places,
        stopped_at=state.stopped_at,
    )


def _assign(
    layout: Layout, stages: tuple[Course, ...], faults: tuple[Fault, ...]
) -> tuple[tuple[Course, ...], list[int]]:
    """Return all courses, and which one each rank follows."""
    stage_ranks = layout.tensor * layout.data
    course_of = [rank // stage_ranks for rank in range(layout.world_size)]
    found = list(stages)
    # From the last one back, so that the places of earlier ones stay what they are.
    for fault in sorted(faults, key=lambda each: -each.at):
        if fault.kind.halts:
            continue
        before = found[course_of[fault.rank]]
        found.append(replace(apply(fault, before), changed_at=fault.at))
        course_of[fault.rank] = len(found) - 1
    return tuple(found), course_of


class _Motion:
    """The ranks on their way. A rank waits in one operation at a time, so a group holds one collective at a time."""

    def __init__(self, layout: Layout, courses: tuple[Course, ...], course_of: list[int], places: list[int]) -> None:
        self.places = places
        self.stopped_at = [0] * layout.world_size
        self.halts: dict[int, int] = {}
        self._sent = [[0] * layout.world_size for _ in range(2)]
        self._courses = [course.codes for course in courses]
        self._course_of = course_of
        self._hop = layout.tensor * layout.data
        self._numbers = [
            [layout.number(axis, rank) for rank in range(layout.world_size)] if axis in layout.axes else []
            for axis in AXES
        ]
        self._sizes = [layout.size(axis) for axis in AXES]
        self._there: list[dict[int, list[int]]] = [{} for _ in AXES]  # who has come to a group's next collective
        self._signatures: list[dict[int, int]] = [{} for _ in AXES]  # of it, -1 where they differ
        self._received = [[0] * layout.world_size for _ in range(2)]
        self._awaits: dict[int, int] = {}  # direction from which a rank waits for a message
        self._clock = 0

    def settle(self) -> None:
        """Move every rank as far as it gets."""
        ready = list(range(len(self.places)))
        while ready:
            self._advance(ready.pop(), ready)

    def _advance(self, rank: int, ready: list[int]) -> None:
        codes, place = self._courses[self._course_of[rank]], self.places[rank]
        halt = self.halts.get(rank, -1)
        while place < len(codes) and place != halt:
            kind, where, signature = codes[place]
            self._clock += 1
            if kind == _COLLECTIVE:
                if not self._meet(rank, where, signature, ready):
                    break
            elif kind == _SEND:
                self._send(rank, where, ready)
            elif not self._receive(rank, where):
                break
            place += 1
        self.places[rank], self.stopped_at[rank] = place, self._clock

    def _meet(self, rank: int, axis: int, signature: int, ready: list[int]) -> bool:
        """Come to a collective. Return whether it is complete; the others are set going then."""
        number = self._numbers[axis][rank]
        there = self._there[axis].setdefault(number, [])
        known = self._signatures[axis]
        if known.setdefault(number, signature) != signature:
            known[number] = -1
        there.append(rank)
        if len(there) < self._sizes[axis] or known[number] == -1:
            return False
        there.pop()
        for other in there:
            self.places[other] += 1
        ready += there
        del self._there[axis][number], known[number]
        return True

    def _send(self, rank: int, towards: int, ready: list[int]) -> None:
        direction = int(towards < 0)
        peer = rank + towards * self._hop
        self._sent[direction][peer] += 1
        if self._awaits.get(peer) == direction:
            del self._awaits[peer]
            ready.append(peer)

    def _receive(self, rank: int, towards: int) -> bool:
        direction = int(towards > 0)  # what comes from the next stage travels up
        if self._received[direction][rank] < self._sent[direction][rank]:
            self._received[direction][rank] += 1
            return True
        self._awaits[rank] = direction
        return False


def cruising(layout: Layout, training: Training, *, steps: int, at_step: int) -> Standstill:
    """Return a healthy job at the moment at which all ranks have come through so many training steps of `steps`."""
    stages = courses(layout, training, steps)
    course_of = [layout.stage(rank) for rank in range(layout.world_size)]
    return Standstill(
        layout=layout,
        faults=(),
        courses=stages,
        course_of=course_of,
        places=[len(stages[stage].steps) // steps * at_step for stage in course_of],
        moving=True,
        stopped_at=[0] * layout.world_size,
    )
