"""Says what pairs of measurements prove: a trimmed mean and its 95 % confidence interval.

On a shared machine a block of work may take twice as long for reasons of its own. A plain mean follows such a block;
here a tenth of the pairs is left out at each end, and the interval is Yuen's, of the winsorised spread.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

TRIM = 0.1  # of the values, at each end
_Z_95 = 1.959964


class Interval(NamedTuple):
    """What was found, and between what it lies."""

    middle: float
    low: float
    high: float

    @property
    def reach(self) -> float:
        """Return half of the interval's width."""
        return (self.high - self.low) / 2

    def has(self, value: float) -> bool:
        """Say whether a value lies in it."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.middle:.4g} ({self.low:.4g} to {self.high:.4g})"


def student_t(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t, by Fisher's expansion: right to 0.3 % from five degrees on."""
    z, n = _Z_95, float(degrees)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / n**power for power, term in enumerate(terms, start=1))


def trimmed(values: Sequence[float]) -> float:
    """Return the mean without the tenth at each end."""
    cut = int(len(values) * TRIM)
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def interval(values: Sequence[float]) -> Interval:
    """Return the trimmed mean of independent values and its 95 % interval; infinitely wide below six values."""
    if len(values) < 6:
        return Interval(statistics.fmean(values), -math.inf, math.inf)
    ordered, cut = sorted(values), int(len(values) * TRIM)
    kept = ordered[cut : len(ordered) - cut]
    winsorised = [min(max(value, kept[0]), kept[-1]) for value in ordered]
    error = statistics.stdev(winsorised) * math.sqrt(len(ordered) - 1) / math.sqrt(len(kept) * (len(kept) - 1))
    middle, reach = statistics.fmean(kept), student_t(len(kept) - 1) * error
    return Interval(middle, middle - reach, middle + reach)


def ratio(bare: Sequence[float], there: Sequence[float]) -> Interval:
    """Return how many times the bare figure the other is, of two paired series."""
    found = interval([math.log(b / a) for a, b in zip(bare, there, strict=True)])
    return Interval(*(math.exp(value) for value in found))


def added(bare: Sequence[float], there: Sequence[float]) -> Interval:
    """Return how much is added to the bare figure, of two paired series."""
    return interval([b - a for a, b in zip(bare, there, strict=True)])
