"""Follows the waits that are under way in a job, and learns from those that end by themselves.

The waits are those for ranks outside of every operation. While one lasts, its ranks may do one thing after another:
what each took is learned by itself. Pure: time is passed in, and what was learned is returned.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ncclwatch.contract.model.job import Habit, WaitClass
from ncclwatch.contract.model.verdict import Cause, Severity, Verdict
from ncclwatch_server.state.waits.history import JobHabits, Lesson

WaitKey = tuple[str, int]  # group and sequence number of what is waited in


@dataclass(slots=True, kw_only=True)
class _UnderWay:
    """One wait, and what the ranks that are waited for have done so far."""

    taken_s: dict[WaitClass, float] = field(default_factory=dict)
    newest: WaitClass
    onset_s: float = 0.0  # as of the last look
    still_s: float = 0.0  # the longest so far
    seen_at: float
    late: frozenset[int] = frozenset()  # the ranks that were waited for, as of the last look
    lost: bool = False  # of these nothing is heard any more: how long it lasts nobody knows
    stopped: bool = False  # somebody stopped one of these: how long it lasts says nothing of what they do

    def see(self, kind: WaitClass, onset_s: float, still_s: float, now: float) -> None:
        """Take note of a look at it."""
        # It may have grown less than the clock: the wait counts from the last rank that came to it.
        grown_s = max(0.0, onset_s - self.onset_s)
        self.taken_s[kind] = self.taken_s.get(kind, 0.0) + grown_s
        self.newest, self.onset_s, self.seen_at = kind, onset_s, now
        self.still_s = max(self.still_s, still_s)


class Patience:
    """The waits of one attempt of a job."""

    def __init__(self, habits: JobHabits | None = None) -> None:
        self._habits = habits or JobHabits()
        self._waits: dict[WaitKey, _UnderWay] = {}
        self.timeout_s = 0.0  # of the default group, as the ranks say; 0: they have not said

    @property
    def habits(self) -> Mapping[WaitClass, Habit]:
        """What this job has done before."""
        return self._habits.habits

    @property
    def under_way(self) -> Mapping[WaitKey, tuple[WaitClass, ...]]:
        """What the ranks that are waited for have done since each wait began."""
        return {key: tuple(wait.taken_s) for key, wait in self._waits.items()}

    def next_attempt(self) -> "Patience":
        """Return the patience of another attempt of the same launch: it has learned what this one has."""
        return Patience(self._habits)

    def see(self, verdicts: Iterable[Verdict], now: float, unheard: frozenset[int] = frozenset()) -> tuple[Lesson, ...]:
        """Take note of a judgement. Returns what was learned of waits that it does not show any more.

        A wait for ranks that are `unheard` is shown no more, and may last. What they did when it began stays known.
        """
        said = tuple(verdicts)
        for wait in self._waits.values():
            wait.lost = wait.lost or bool(wait.late & unheard)
        if any(verdict.waited is None and verdict.severity is Severity.CRITICAL for verdict in said):
            # What ends now ends of something else.
            self._waits = {key: wait for key, wait in self._waits.items() if wait.late & unheard}
            return ()
        shown = {(verdict.group, verdict.seq): verdict for verdict in said if verdict.waited is not None}
        ended = [key for key, wait in self._waits.items() if key not in shown and not wait.late & unheard]
        lessons = self._learn(ended, now)
        for key, verdict in shown.items():
            if verdict.waited is not None:
                wait = self._waits.setdefault(key, _UnderWay(newest=verdict.waited, seen_at=now))
                wait.see(verdict.waited, verdict.onset_s, verdict.still_s, now)
                wait.stopped = wait.stopped or verdict.cause is Cause.PROCESS_FROZEN
                wait.late, wait.lost = frozenset(culprit.rank for culprit in verdict.culprits), False
        return lessons

    def rest(self, now: float) -> tuple[Lesson, ...]:
        """Nothing is suspicious any more: what was under way has ended by itself. Returns what that teaches."""
        return self._learn(list(self._waits), now) if self._waits else ()

    def forget(self) -> None:
        """Nobody knows how the waits under way end."""
        self._waits = {}

    def _learn(self, ended: Iterable[WaitKey], now: float) -> tuple[Lesson, ...]:
        lessons: dict[WaitClass, Lesson] = {}
        for key in ended:
            wait = self._waits.pop(key)
            if wait.lost or wait.stopped:
                continue
            wait.taken_s[wait.newest] += max(0.0, now - wait.seen_at)  # it ended some time since
            for kind, taken_s in wait.taken_s.items():
                still_s = wait.still_s if kind == wait.newest else 0.0
                lessons[kind] = self._habits.learn(kind, taken_s, still_s, self.timeout_s)
        return tuple(lessons.values())
