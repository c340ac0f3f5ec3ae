"""Remembers whom the server has refused lately: who misses a node learns here why it does not report."""

from collections.abc import Callable
from dataclasses import dataclass, replace

REFUSALS_MAX = 64  # the oldest are forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why somebody was refused, and how often for that reason."""

    where: str  # the host, or the address of who has not said a host
    reason: str
    job: str  # the job that was refused, "" where it was the agent itself
    times: int
    at: float  # the last time, in seconds since 1970


class Refusals:
    """The last refusals, one for each reason at each place."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._known: dict[tuple[str, str, str], Refusal] = {}  # the newest last

    def note(self, where: str, reason: str, job: str = "") -> None:
        """Note that somebody was refused."""
        key = (where, job, reason)
        last = self._known.pop(key, None) or Refusal(where=where, reason=reason, job=job, times=0, at=0.0)
        self._known[key] = replace(last, times=last.times + 1, at=self._wall())
        if len(self._known) > REFUSALS_MAX:
            del self._known[next(iter(self._known))]

    def lately(self) -> tuple[Refusal, ...]:
        """Return them, the newest first."""
        return tuple(reversed(self._known.values()))
