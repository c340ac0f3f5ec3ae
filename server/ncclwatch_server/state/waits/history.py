"""Remembers how long those waits of a job lasted that ended by themselves, by class.

The bound of a class is a robust one: of the logarithms of the durations the median and the median absolute
deviation, as in adaptive timeouts since Jacobson, with the quantile that all but one in a thousand keep. Only waits
that somebody looked at are counted, those above a second, so the bound errs on the side of patience.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np

from ncclwatch.contract.job_names import namespace
from ncclwatch.contract.model.job import Habit, WaitClass

KEPT_MAX = 200  # durations of one class, the newest: a job may change its ways
CLASSES_MAX = 64  # of one job
JOBS_MAX = 512  # remembered by one server
WAITS_MIN = 30  # below it a distribution is a guess
DEVIATIONS = 6.0
OFTEN = 3  # times that a rank has stood still and gone on: no accident
LONGEST_FACTOR = 3.0  # of the quantile, or of the longest where waits are few
BOUND_FACTOR_MAX = 10.0  # of the longest: a wide distribution must not allow for days
_NORMAL = 1.4826  # a standard deviation, in median absolute deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is remembered of one class of waits of one job."""

    kind: WaitClass
    waits: int = 0  # in all, also those no longer kept
    durations_s: tuple[float, ...] = ()  # the newest last
    longest_still_s: float = 0.0
    stills_s: tuple[float, ...] = ()  # the longest times that an awaited rank stood still, the longest first
    timeout_s: float = 0.0  # of the default group, in the run that knew the longest of them; 0: unknown

    def with_wait(self, waited_s: float, still_s: float, timeout_s: float = 0.0) -> "Lesson":
        """Return the lesson with one more wait that ended by itself, in a run with this timeout."""
        longest = waited_s >= max(self.durations_s, default=0.0)
        durations = (*self.durations_s, round(waited_s, 2))[-KEPT_MAX:]
        return replace(
            self,
            waits=self.waits + 1,
            durations_s=durations,
            longest_still_s=max(self.longest_still_s, still_s),
            stills_s=tuple(sorted((*self.stills_s, round(still_s, 2)), reverse=True)[:OFTEN]),
            timeout_s=timeout_s if longest else self.timeout_s,
        )

    def habit(self) -> Habit:
        """Return what the judge needs of it."""
        return Habit(
            waits=self.waits,
            longest_s=max(self.durations_s, default=0.0),
            bound_s=bound_s(self.durations_s),
            longest_still_s=self.longest_still_s,
            often_still_s=self.stills_s[-1] if len(self.stills_s) == OFTEN else 0.0,
            timeout_s=self.timeout_s,
        )


def bound_s(durations_s: Sequence[float]) -> float:
    """Return beyond which duration a wait is longer than these let expect; infinity if there are none.

    From WAITS_MIN on the greater of exp(median + DEVIATIONS * deviation) of the logarithms and of LONGEST_FACTOR times
    the 99.9 % quantile; below that LONGEST_FACTOR times the longest.
    """
    if not len(durations_s):
        return math.inf
    found = np.maximum(np.asarray(durations_s, np.float64), 1e-3)
    longest = float(found.max())
    if len(found) < WAITS_MIN:
        return LONGEST_FACTOR * longest
    logs = np.log(found)
    middle = float(np.median(logs))
    deviation = _NORMAL * float(np.median(np.abs(logs - middle)))
    expected = math.exp(min(middle + DEVIATIONS * deviation, math.log(BOUND_FACTOR_MAX * longest)))
    return max(expected, LONGEST_FACTOR * float(np.quantile(found, 0.999)))


class JobHabits:
    """All lessons of one job, bounded: the class that taught nothing for longest is forgotten first."""

    def __init__(self, lessons: Iterable[Lesson] = ()) -> None:
        self._lessons: OrderedDict[WaitClass, Lesson] = OrderedDict()
        self._habits: dict[WaitClass, Habit] = {}
        for lesson in lessons:
            self._keep(lesson)

    @property
    def habits(self) -> Mapping[WaitClass, Habit]:
        """What the judge may expect of each class."""
        return self._habits

    def lessons(self) -> list[Lesson]:
        """Return all lessons, the oldest first."""
        return list(self._lessons.values())

    def learn(self, kind: WaitClass, waited_s: float, still_s: float, timeout_s: float = 0.0) -> Lesson:
        """Remember a wait that ended by itself. Returns what is remembered of its class now."""
        lesson = self._lessons.get(kind, Lesson(kind=kind)).with_wait(waited_s, still_s, timeout_s)
        self._keep(lesson)
        return lesson

    def recall(self, lessons: Iterable[Lesson]) -> None:
        """Add lessons of earlier, of classes that nothing was learned about since."""
        for lesson in lessons:
            if lesson.kind not in self._lessons:
                self._keep(lesson)

    def _keep(self, lesson: Lesson) -> None:
        self._lessons[lesson.kind] = lesson
        self._lessons.move_to_end(lesson.kind)
        # A new mapping: a judge in another thread may hold the old one.
        self._habits = {**self._habits, lesson.kind: lesson.habit()}
        while len(self._lessons) > CLASSES_MAX:
            forgotten, _ = self._lessons.popitem(last=False)
            self._habits = {kind: habit for kind, habit in self._habits.items() if kind != forgotten}


class Memory:
    """The habits of the jobs by name, so that a job that is resumed finds its own again."""

    def __init__(self, known: Mapping[str, Sequence[Lesson]] | None = None) -> None:
        self._jobs: OrderedDict[str, JobHabits] = OrderedDict()
        self.recall(known or {})

    def recall(self, known: Mapping[str, Sequence[Lesson]]) -> None:
        """Add what jobs taught earlier that was not at hand. What a job has taught meanwhile is newer."""
        newer = list(self._jobs)
        for name, lessons in known.items():
            self._jobs.setdefault(name, JobHabits()).recall(lessons)
        for name in newer:
            self._jobs.move_to_end(name)
        self._make_room()

    def lessons(self) -> list[tuple[str, Lesson]]:
        """Return all that jobs have taught, each with the job's name, the oldest first."""
        return [(name, lesson) for name, habits in self._jobs.items() for lesson in habits.lessons()]

    def forget(self, name: str) -> None:
        """Forget what the job with this name has taught."""
        self._jobs.pop(name, None)

    def of(self, name: str) -> JobHabits:
        """Return the habits of the job with this name, none yet if it is new."""
        found = self._jobs.setdefault(name, JobHabits())
        self._jobs.move_to_end(name)
        self._make_room(name)
        return found

    def _make_room(self, newest: str = "") -> None:
        """Forget the oldest of the namespace with most jobs, if possible one without lessons, until the others fit.

        A store may bring thousands at once.
        """
        excess = len(self._jobs) - JOBS_MAX
        if excess <= 0:
            return
        others: dict[str, list[str]] = {}  # by namespace, whom to forget first
        for name in sorted(self._jobs.keys() - {newest}, key=self._age_order()):
            others.setdefault(namespace(name), []).append(name)
        greediest = [(-len(names), number, names[::-1]) for number, names in enumerate(others.values())]
        heapify(greediest)
        for _ in range(excess):
            size, number, names = greediest[0]
            del self._jobs[names.pop()]
            heapreplace(greediest, (size + 1, number, names))

    def _age_order(self) -> Callable[[str], tuple[bool, int]]:
        places = {name: place for place, name in enumerate(self._jobs)}
        return lambda name: (bool(self._jobs[name].lessons()), places[name])
