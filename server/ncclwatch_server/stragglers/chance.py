"""Bounds what chance may do to the latest of N healthy ranks; grows with the ranks, the looks and the pauses.

A healthy rank is late by noise in every window, and now and then by a pause (a page fault, a cron job, a retry) of any
length. So a sum over windows has to pass two kinds of bounds. As noise: the normal quantile at the probability asked
for, divided by the number of ranks (Bonferroni) and widened as Student's t is, since the noise is an estimate itself.
As noise and k pauses: without its k latest windows it has to pass the bound for what remains, at a probability that is
higher by how rarely k pauses come together. The union over k bounds the whole, whatever a pause is long.
"""

import functools
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32] | NDArray[np.float64]

QUARTILES = 1.349  # standard deviations of a normal distribution between its quartiles
_INNER = 2.5  # standard deviations: within these a normal distribution shows its spread, and outliers do not
_INNER_SIGMA = 0.9499  # the standard deviation of a normal distribution that is cut there
FREEDOM = 0.9  # of a rank each, in the spread so estimated
FEW_TO_MEASURE = 64  # of fewer ranks the spread is too rough to go by: a floor stands for it (`scores.Bounds`)
TO_SIGMA = 1.4826  # from a median absolute deviation


def spread_of(ordered: Floats) -> float:
    """Return the standard deviation of most of the values, which are sorted: few outliers do not move it.

    The quartiles alone would use a third of what the values tell, and a bound at six standard deviations passes each
    per cent of their error on: so they only say what is an outlier.
    """
    if len(ordered) < FEW_TO_MEASURE:
        return TO_SIGMA * float(np.median(np.abs(ordered - np.median(ordered))))
    low, middle, high = (float(ordered[len(ordered) * quarter // 4]) for quarter in (1, 2, 3))
    rough = (high - low) / QUARTILES
    first, end = np.searchsorted(ordered, [middle - _INNER * rough, middle + _INNER * rough])
    inner = ordered[first:end]
    return max(float(inner.std()) / _INNER_SIGMA, 0.5 * rough) if len(inner) > 2 else rough


def quantile(false: float, freedom: float) -> float:
    """Return what Student's t with so many degrees of freedom exceeds with this probability, by its expansion."""
    z = -NormalDist().inv_cdf(max(false, 1e-300))
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + first + second if z > 0 else z


@functools.lru_cache(maxsize=256)
def levels(ranks: int, span: int, pauses: float, false: float) -> tuple[float, ...]:
    """Return for k = 0, 1, ... the standard deviations that a sum without its k latest windows has to reach.

    `pauses` is the probability of a pause of one rank in one window, `false` that of one wrong suspect among all ranks.
    More pauses than there are levels are rarer than that; where all windows may be pauses, no sum is enough.
    """
    if pauses**span > false / ranks:
        return (math.inf,)
    freedom = FREEDOM * ranks if ranks >= FEW_TO_MEASURE else math.inf
    rarely = [min(1.0, math.comb(span, k) * pauses**k) for k in range(span)]
    possible = [share for share in rarely if share > false / ranks]
    # Each number of pauses may err half as often as the one before; with the rest, that of still more, it adds up to 1.
    allowed = (false / ranks * 0.5 ** (k + 1) for k in range(len(possible)))
    return tuple(quantile(min(0.5, each / share), freedom) for each, share in zip(allowed, possible, strict=True))


def beyond(sigmas: Floats, spread: float, bounds: tuple[float, ...]) -> bool:
    """Whether the windows of one rank, in standard deviations, are beyond noise and pauses.

    `spread` is how much sums over these windows vary among healthy ranks, in units of what independent windows give:
    above 1 where ranks differ for good, which fewer windows show less, and below where windows vary less than a unit.
    """
    span = len(sigmas)
    unit, lasting = min(1.0, spread), max(0.0, spread**2 - 1.0) / span
    smallest = np.cumsum(np.sort(sigmas))
    return all(
        smallest[span - k - 1] > bound * unit * math.sqrt((span - k) * (1.0 + (span - k) * lasting))
        for k, bound in enumerate(bounds)
    )
