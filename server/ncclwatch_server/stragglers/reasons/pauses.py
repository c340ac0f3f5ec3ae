"""Finds recorded pauses of a rank that come together with the wait of the others, again and again.

Statistics cannot tell which of two ranks is slow, and a pause in one window of four is no steady lateness. What a rank
was held up by is recorded, though: where the others wait for as long as it stood, and not once but again and again, the
pause is the cause. What remains of a window counts in the next one, since totals are read up to a second after the
boundary of a window.

Loaders are late by chance as well: a few large items among many, which each rank draws like the others. One of them has
had most of the last few then, and no reason. So who is told to wait for its data has been held up in more windows than
that chance gives it, by Chernoff's bound on a binomial share.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.model.slowness import SlowKind
from ncclwatch_server.stragglers.scores import FEW, Bounds, lateness
from ncclwatch_server.stragglers.windows import Floats, Window

# The first of them may hold a process up inside of a collective too, where its own clock counts that as blocked.
ANYWHERE = (SlowKind.STOPPED, SlowKind.CPU_THROTTLING)
PAUSES = (*ANYWHERE, SlowKind.GARBAGE_COLLECTION, SlowKind.DATA_LOADING)
HORIZON = 25  # windows: what is older hardly counts
WINDOWS_MIN = 8  # before anything is told
TIMES_MIN = 3.0  # windows in which both came together
PAUSE_S_MIN = 0.1  # in a window
EXPLAINS = 0.4  # of the rank's lateness
STILL_TURNS, STILL_MIN = 3.0, 5.0  # it is over when it has not come for so many times its usual distance, in windows
LIKE_MAX = 1 / 3  # of what it explains may be explained so on the ranks like it: they take turns else
EVENT_SHARE_MIN, EVENT_WARN_MIN = 0.04, 0.08  # of the time: an event that is recorded needs no room for noise
CHANCE_HORIZON = 100  # windows in which loaders are compared: of two ranks, chance gives one a few in a row
CHANCE_MAX = 1e-4  # probability that ranks that draw alike look as unlike, for any of them
_KEEP = 1.0 - 1.0 / HORIZON
_KEEP_DRAWN = 1.0 - 1.0 / CHANCE_HORIZON
_FORGOTTEN = 0.05  # of a window in which both came together


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What holds a rank up again and again while the others wait."""

    rank: int
    kind: SlowKind
    share: float  # of the time that it explains
    often: float  # share of the windows in which both came together
    severe: bool


class Pauses:
    """What recorded pauses explain of the wait for each rank, of late. Bounded by the world size."""

    def __init__(self, world_size: int) -> None:
        shape = (len(PAUSES), world_size)
        self._explained_s, self._largest_s, self._times, self._held_s = (np.zeros(shape, np.float32) for _ in range(4))
        self._held_left, self._spent_left = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._missed = np.zeros(shape, np.float32)  # windows since both came together last
        self._drawn = np.zeros(
            world_size, np.float32
        )  # windows in which a loader held a rank up, for longer than _times
        self._span_s = 0.0
        self._counted = 0.0
        self._windows = 0

    def add_window(self, window: Window, spent_s: NDArray[np.float32], passed_s: float) -> tuple[Pause, ...]:
        """Add a window, and what its ranks spent in each of PAUSES, (kinds, ranks). Returns what explains waits."""
        self._windows += 1
        self._span_s, self._counted = self._span_s * _KEEP + passed_s, self._counted * _KEEP + 1.0
        self._drawn *= _KEEP_DRAWN
        late_s = np.nan_to_num(lateness(window)) * window.span_s
        waited_s = late_s + window.blocked * window.span_s  # by the ranks like it
        for number, kind in enumerate(PAUSES):
            self._match(number, window, waited_s if kind in ANYWHERE else late_s, spent_s[number])
        return self._found(window) if self._windows >= WINDOWS_MIN else ()

    def _match(self, number: int, window: Window, held_s: Floats, spent_s: NDArray[np.float32]) -> None:
        for column in (self._explained_s, self._held_s, self._times, self._largest_s):
            column[number] *= _KEEP
        self._missed[number] += 1.0
        late = held_s >= PAUSE_S_MIN
        if not self._concerns_anybody(number, spent_s):
            # As in most jobs, for most kinds: what the others wait for may be told of in the next window yet.
            self._held_left[number] = 0.0
            self._held_left[number, window.rank[late]] = held_s[late]
            self._held_s[number, window.rank[late]] += held_s[late]
            return
        more_s = _more(window, spent_s)
        # Of most ranks nothing is late and nothing is held up.
        some = late | (more_s >= PAUSE_S_MIN) | (self._times[number, window.rank] > _FORGOTTEN)
        who = window.rank[some]
        held, spent = held_s[some].clip(min=0.0), more_s[some].clip(min=0.0)
        held_in_all, spent_in_all = held + self._held_left[number, who], spent + self._spent_left[number, who]
        both = np.minimum(held_in_all, spent_in_all)
        self._held_left[number] = self._spent_left[number] = 0.0
        self._held_left[number, who] = np.minimum(held_in_all - both, held)
        self._spent_left[number, who] = np.minimum(spent_in_all - both, spent)
        self._explained_s[number, who] += both
        self._held_s[number, who] += held
        together = who[both >= PAUSE_S_MIN]
        self._times[number, together] += 1.0
        self._missed[number, together] = 0.0
        if PAUSES[number] is SlowKind.DATA_LOADING:
            self._drawn[together] += 1.0
        self._largest_s[number, who] = np.maximum(self._largest_s[number, who], both)

    def _concerns_anybody(self, number: int, spent_s: NDArray[np.float32]) -> bool:
        """Say whether any rank spends time in a kind, now or in the window before, or did so not long ago."""
        if len(spent_s) and float(spent_s.max()) >= PAUSE_S_MIN:
            return True
        return bool(self._spent_left[number].any()) or float(self._times[number].max()) > _FORGOTTEN

    def _found(self, window: Window) -> tuple[Pause, ...]:
        found: dict[int, Pause] = {}
        bounds = Bounds.of(len(window.rank))
        for number, kind in enumerate(PAUSES):
            if float(self._times[number].max()) < TIMES_MIN:
                continue
            least, warns = bounds.share_min, bounds.warn_min
            if kind is not SlowKind.DATA_LOADING:
                least, warns = min(least, EVENT_SHARE_MIN), min(warns, EVENT_WARN_MIN)
            explained_s, times = self._explained_s[number, window.rank], self._times[number, window.rank]
            again_s = explained_s - self._largest_s[number, window.rank]
            enough = (again_s >= least * self._span_s) & (times >= TIMES_MIN)
            distance = self._counted / np.maximum(times, 1.0)
            enough &= self._missed[number, window.rank] <= np.maximum(STILL_TURNS * distance, STILL_MIN)
            enough &= explained_s >= EXPLAINS * self._held_s[number, window.rank] * (kind not in ANYWHERE)
            for place in np.flatnonzero(enough).tolist():
                rank = int(window.rank[place])
                if rank in found or not self._stands_out(number, window, place):
                    continue
                if kind is SlowKind.DATA_LOADING and self.by_chance(window, rank):
                    continue
                share = min(1.0, float(explained_s[place]) / self._span_s)
                often = float(self._times[number, rank]) / self._counted
                found[rank] = Pause(rank=rank, kind=kind, share=share, often=often, severe=share >= warns)
        return tuple(sorted(found.values(), key=lambda pause: (-pause.share, pause.rank)))

    def _stands_out(self, number: int, window: Window, place: int) -> bool:
        """Whether pauses of this kind explain much more on this rank than on most of those like it."""
        like = window.rank[(window.home == window.home[place]) & (window.rank != window.rank[place])]
        own_s = float(self._explained_s[number, window.rank[place]])
        return len(like) > 0 and float(np.median(self._explained_s[number, like])) <= LIKE_MAX * own_s

    def by_chance(self, window: Window, rank: int) -> bool:
        """Whether a rank's loader held it up now and then, and no more often than if each of its like draws alike."""
        own = float(self._drawn[rank])
        like = window.rank[window.home == window.home[window.rank == rank]]
        total, even = float(self._drawn[like].sum(dtype=np.float64)), 1.0 / len(like)
        if not own or len(like) < 2:
            return False
        return own <= total * even or total * _apart(own / total, even) < math.log(len(like) / CHANCE_MAX)


def _apart(share: float, chance: float) -> float:
    """Return by how much a share departs from the one that chance gives: Kullback and Leibler's, in nats."""
    share = min(share, 1.0)  # sums of rounded numbers
    other = (1.0 - share) * math.log((1.0 - share) / (1.0 - chance)) if share < 1.0 else 0.0
    return share * math.log(share / chance) + other


def _more(window: Window, spent_s: NDArray[np.float32]) -> Floats:
    """Return what each rank spent more than the median of those like it."""
    if not len(spent_s) or float(spent_s.max()) < PAUSE_S_MIN:
        return np.zeros(len(window.rank))
    if len(spent_s) >= FEW and bool((window.home == window.home[0]).all()):
        return (spent_s - np.median(spent_s)).astype(np.float64)
    return -np.nan_to_num(lateness(replace(window, blocked=spent_s.astype(np.float64))))
