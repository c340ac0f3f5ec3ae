"""Is a rank late more than chance makes one of so many ranks late?

Each window gives every rank one number: by how much of the time it was blocked less than the median of its like. Of
N ranks one is always the last, so the bound grows with N (Bonferroni), and it is a bound on the sum over several
windows: a pause that comes once is cut off and is not enough. Noise is measured between ranks (median absolute
deviation, and the 99th percentile where pauses hit any rank), in a window and again in the sum, so that a job whose
ranks all differ a little, for good or by chance, is not blamed on the slowest; where there are too few ranks to
measure it, a floor takes its place.

Wait inversion is described for CUDA events by ByteDance (MegaScale) and others; here it works on the host's clocks.
"""

import math
from collections import deque
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ncclwatch_server.stragglers.windows import Floats, Numbers, Window

FEW = 8  # members; of fewer each is compared with the median of the others
CLIP = 4.0  # standard deviations that one window can count for
SPANS = (5, 25)  # windows that are summed
FALSE_MAX = 2e-6  # probability that some rank of a healthy job passes the bound, for each window
OFTEN = {5: 0.8, 25: 0.6}  # share of the windows in which the rank must be late
LATE_SIGMAS = {5: 1.5, 25: 0.5}  # by so much
STILL = 2  # of the newest SPANS[0] windows in which it must be late: what is over is no finding
_TO_SIGMA = 1.4826  # from a median absolute deviation
TAIL_RANKS_MIN = 256  # of fewer the 99th percentile is one of the latest
_TAIL_SIGMAS = 2.326  # of a normal distribution's 99th percentile
HEAVY = 1.25  # a tail that is heavier by so much is believed; less is how estimates vary
APART = 1.1  # the same of how much sums spread more than chance makes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What chance and small differences may do, as shares of the time, by the number of ranks."""

    noise_min: float  # no smaller standard deviation is believed
    share_min: float  # a smaller loss is nobody's business
    warn_min: float  # and a smaller one nobody is woken for

    @classmethod
    def of(cls, ranks: int) -> "Bounds":
        """Return the bounds for a job of so many ranks."""
        if ranks < 16:
            return cls(noise_min=0.05, share_min=0.10, warn_min=0.15)
        if ranks < 64:
            return cls(noise_min=0.02, share_min=0.04, warn_min=0.08)
        return cls(noise_min=0.0025, share_min=0.01, warn_min=0.03)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A rank that is late beyond chance."""

    rank: int
    share: float  # of the time that its like wait for it, in the mean over the windows
    windows: int  # that were summed
    late_in: int  # of them
    score: float  # standard deviations


def lateness(window: Window) -> Floats:
    """Return by how much of the time each rank was blocked less than the median of its group; NaN: it is alone.

    In a group of few each rank is compared with the others only: it would move their median itself.
    """
    order = np.argsort(window.home, kind="stable")
    _, sizes = np.unique(window.home, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    found = np.full(len(window.rank), np.nan)
    for size in np.unique(sizes).tolist():
        if size < 2:
            continue
        places = order[(starts[sizes == size][:, None] + np.arange(size)[None, :])]
        blocked = window.blocked[places]
        if size >= FEW:
            found[places] = np.median(blocked, axis=1)[:, None] - blocked
            continue
        for column in range(size):
            others = np.median(np.delete(blocked, column, axis=1), axis=1)
            found[places[:, column]] = others - blocked[:, column]
    return found


def in_sigmas(late: Floats, bounds: Bounds) -> Floats:
    """Return lateness in standard deviations of a healthy rank, cut off at CLIP; 0 for a rank that is alone."""
    known = late[~np.isnan(late)]
    if not len(known):
        return np.zeros(len(late))
    noise = max(_spread_of(known), bounds.noise_min)
    if len(known) >= TAIL_RANKS_MIN:
        tail = float(np.percentile(known, 99) - np.median(known)) / _TAIL_SIGMAS
        noise = tail if tail > HEAVY * noise else noise
    return np.clip(np.nan_to_num(late) / noise, -CLIP, CLIP)


def _spread_of(values: Floats) -> float:
    return _TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def bound(ranks: int) -> float:
    """Return the score that one of so many healthy ranks exceeds with probability FALSE_MAX in a window."""
    return NormalDist().inv_cdf(1.0 - FALSE_MAX / max(1, ranks))


class Scores:
    """The last windows of one job: at most SPANS[-1] numbers for each rank, twice."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._sigmas: deque[NDArray[np.float32]] = deque(maxlen=SPANS[-1])
        self._late: deque[NDArray[np.float32]] = deque(maxlen=SPANS[-1])

    def take(self, window: Window) -> tuple[Suspect, ...]:
        """Add a window. Returns the ranks that are late beyond chance now, the latest first."""
        late = lateness(window)
        bounds = Bounds.of(len(window.rank))
        self._late.append(self._spread(window.rank, np.nan_to_num(late)))
        self._sigmas.append(self._spread(window.rank, in_sigmas(late, bounds)))
        found: dict[int, Suspect] = {}
        for span in SPANS:
            if len(self._sigmas) >= span:
                for suspect in self._suspects(span, window.rank, bounds):
                    found.setdefault(suspect.rank, suspect)
        return tuple(sorted(found.values(), key=lambda suspect: (-suspect.share, suspect.rank)))

    def history(self, rank: int) -> tuple[Floats, Floats]:
        """Return the lateness of a rank in the windows that are kept, the oldest first, and the same in sigmas."""
        late = np.array([float(each[rank]) for each in self._late])
        return late, np.array([float(each[rank]) for each in self._sigmas])

    def _spread(self, rank: Numbers, values: Floats) -> NDArray[np.float32]:
        spread = np.zeros(self._world_size, np.float32)
        spread[rank] = values
        return spread

    def _suspects(self, span: int, present: Numbers, bounds: Bounds) -> list[Suspect]:
        sigmas = np.array([self._sigmas[-1 - i] for i in range(span)])
        score = sigmas.sum(axis=0) / math.sqrt(span)
        spread = _spread_of(score[present])
        score /= spread if spread > APART else 1.0  # ranks may differ for good
        ranks = np.flatnonzero(score > bound(len(present)))
        if not len(ranks):
            return []
        share = np.array([self._late[-1 - i][ranks] for i in range(span)]).mean(axis=0)
        late = sigmas[:, ranks] > LATE_SIGMAS[span]
        late_in, lately = late.sum(axis=0), late[: SPANS[0]].sum(axis=0)
        return [
            Suspect(rank=int(r), share=float(s), windows=span, late_in=int(n), score=float(score[r]))
            for r, s, n, still in zip(ranks, share, late_in, lately, strict=True)
            if s >= bounds.share_min and n >= OFTEN[span] * span and still >= STILL
        ]
