"""Finds the moment at which all steps of a job became slower.

A two-sided cumulative sum on the logarithm of the time an operation takes, against the median and spread of the
windows before (Page's CUSUM, as in reference works on change points). An alarm needs more than the sum: the mean
after the change is compared with the one before it over several windows, so that one long pause is no change.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

BASE_MIN = 12  # windows before a change can be seen
BASE_MAX = 60
AFTER_MIN = 6  # windows after it
RATIO_MIN = 0.10  # slower by so much
DRIFT = 0.5  # standard deviations that are no change
ALARM = 8.0
SIGMA_MIN = 0.02  # of the logarithm: no job is steadier
CLIP = 4.0  # one window counts for no more
_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """All steps take longer since a moment."""

    since: float  # on the clock of who asked
    before_s: float  # an operation took
    after_s: float
    blocked_before: float  # share of the time that the rank which waited least was blocked: nobody was late then
    blocked_after: float

    @property
    def ratio(self) -> float:
        """Return how many times longer a step takes."""
        return self.after_s / self.before_s

    @property
    def in_network(self) -> bool:
        """Whether most of what steps take longer is spent inside of collectives by all ranks."""
        gained_s = self.after_s * self.blocked_after - self.before_s * self.blocked_before
        return gained_s > 0.6 * (self.after_s - self.before_s)


@dataclass(frozen=True, slots=True)
class _Point:
    at: float
    per_operation_s: float
    blocked: float


class Pace:
    """The pace of one job, over at most BASE_MAX windows of the past and those since a change."""

    def __init__(self) -> None:
        self._base: deque[_Point] = deque(maxlen=BASE_MAX)
        self._after: deque[_Point] = deque(maxlen=BASE_MAX)
        self._sum = 0.0
        self._told = False

    def add_window(self, at: float, per_operation_s: float, blocked: float) -> Slowdown | None:
        """Add a window that ended now. Returns the change that stands, None if there is none."""
        if per_operation_s <= 0:
            return self._change()
        point = _Point(at, per_operation_s, blocked)
        if len(self._base) < BASE_MIN:
            self._base.append(point)
            return None
        logs = np.log([each.per_operation_s for each in self._base])
        middle = float(np.median(logs))
        sigma = max(SIGMA_MIN, _TO_SIGMA * float(np.median(np.abs(logs - middle))))
        deviation = (math.log(per_operation_s) - middle) / sigma
        self._sum = max(0.0, self._sum + min(deviation, CLIP) - DRIFT)
        if self._sum == 0.0:
            # As fast as before: what was gathered was no change, and belongs to the past.
            self._base.extend((*self._after, point))
            self._after.clear()
            self._told = False
            return None
        self._after.append(point)
        return self._change()

    def _change(self) -> Slowdown | None:
        after = list(self._after)
        if self._told and len(after) >= AFTER_MIN:
            return self._slowdown(after)
        if self._sum < ALARM or len(after) < AFTER_MIN:
            return None
        found = self._slowdown(after)
        self._told = found is not None
        return found

    def _slowdown(self, after: list[_Point]) -> Slowdown | None:
        before_s = float(np.median([each.per_operation_s for each in self._base]))
        recent = after[-AFTER_MIN:]
        after_s = float(np.median([each.per_operation_s for each in recent]))
        # Most windows must be slower by themselves: a few very long ones among many are pauses.
        slower = sum(each.per_operation_s > before_s * (1 + RATIO_MIN) for each in recent)
        if after_s < before_s * (1 + RATIO_MIN) or slower < AFTER_MIN - 1:
            return None
        return Slowdown(
            since=after[0].at,
            before_s=before_s,
            after_s=after_s,
            blocked_before=float(np.median([each.blocked for each in self._base])),
            blocked_after=float(np.median([each.blocked for each in recent])),
        )
