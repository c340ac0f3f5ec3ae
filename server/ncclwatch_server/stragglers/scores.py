"""Says which rank is late more than chance makes one of so many ranks late.

Each window gives every rank one number: by how much of the time it was blocked less than the median of its like. Of
N ranks one is always the last, so the bound grows with N, and it is a bound on the sum over several windows, with and
without those that a pause may explain (`chance`). Noise is measured between ranks (their spread, and the 99th
percentile where the tail is heavier), in a window and again in the sum, so that a job whose ranks all differ a little,
for good or by chance, is not blamed on the slowest; where there are too few ranks to measure it, a floor takes its
place. A rank that becomes late is compared with its own habit as well, and what it always was does not hide it.

Wait inversion is described for CUDA events by ByteDance (MegaScale) and others; here it works on the host's clocks.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclwatch_server.stragglers import few_ranks
from ncclwatch_server.stragglers.chance import beyond, levels, spread_of
from ncclwatch_server.stragglers.windows import Floats, Numbers, Window

FEW = 8  # members; of fewer each is compared with the median of the others
CLIP = 6.0  # standard deviations that one window can count for
SPANS = (5, 25)  # windows that are summed
HABIT_MIN = 20  # windows before those make a habit
HABIT_MAX = 240  # and no more of them count: what was long ago is forgotten
FALSE_MAX = 4e-6  # probability that some rank of a healthy job passes a bound, for each window and span
FALSE_HABIT_MAX = 1e-6  # the same of the bound on departures from habits, which adds to that
PAUSE = 4.0  # standard deviations in one window that noise does not make
PAUSES_MIN = 5e-4  # probability of a pause of a rank in a window, where fewer have been seen
PAUSES_SEEN_MIN = 1000  # windows of ranks that show another one well; fewer show what they show for certain
PAUSES_SURE = 2.0  # standard deviations of that: of three ranks, one pause is not yet frequent
OFTEN = {5: 0.8, 25: 0.6}  # share of the windows in which the rank must be late
LATE_SIGMAS = {5: 1.5, 25: 0.5}  # by so much
STILL = 2  # of the newest SPANS[0] windows in which it must be late: what is over is no finding
TAIL_RANKS_MIN = 256  # of fewer the 99th percentile is one of the latest
_TAIL_SIGMAS = 2.326  # of a normal distribution's 99th percentile
HEAVY = 1.15  # a tail that is heavier by so much is believed; less is how estimates vary


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
    warn_min: float  # a smaller share nobody is woken for


def lateness(window: Window) -> Floats:
    """Return by how much of the time each rank was blocked less than the median of its group; NaN: it is alone.

    In a group of few each rank is compared with the others only: it would move their median itself. Where messages
    are waited for, one that nobody waits for may be ahead of all: only who waits less than every other is late.
    """
    if window.by_messages:
        return _less_than_all(window.blocked)
    if len(window.rank) >= FEW and bool((window.home == window.home[0]).all()):
        middle = float(np.sort(window.blocked.astype(np.float32))[len(window.rank) // 2])
        return middle - window.blocked
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


def _less_than_all(blocked: Floats) -> Floats:
    """Return by how much less than the least of the others each rank waited."""
    first, second = np.sort(blocked)[:2]
    late: Floats = first - blocked
    late[int(np.argmin(blocked))] = second - first
    return late


def in_sigmas(late: Floats, bounds: Bounds) -> Floats:
    """Return lateness in standard deviations of a healthy rank, cut off at CLIP; 0 for a rank that is alone."""
    ordered = np.sort(late.astype(np.float32))  # NaN last
    known = ordered[: len(ordered) - int(np.isnan(ordered[-1:]).any() and np.isnan(ordered).sum())]
    if not len(known):
        return np.zeros(len(late))
    noise = max(spread_of(known), bounds.noise_min)
    if len(known) >= TAIL_RANKS_MIN:
        tail = float(known[len(known) * 99 // 100] - known[len(known) // 2]) / _TAIL_SIGMAS
        noise = tail if tail > HEAVY * noise else noise
    return np.clip(np.nan_to_num(late) / noise, -CLIP, CLIP)


class Scores:
    """The last windows of one job: at most SPANS[-1] numbers for each rank, twice, and its habit."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._sigmas: deque[NDArray[np.float32]] = deque(maxlen=SPANS[-1])
        self._late: deque[NDArray[np.float32]] = deque(maxlen=SPANS[-1])
        self._pauses: deque[int] = deque(maxlen=SPANS[-1])  # ranks beyond PAUSE
        self._sums = {span: np.zeros(world_size) for span in SPANS}  # of the newest windows, in sigmas
        self._home = np.zeros(world_size, np.uint64)
        self._habit = np.zeros(world_size)  # mean of the windows before the newest SPANS[-1], in sigmas
        self._habits = np.zeros(world_size)  # windows in it
        self._suspected = np.zeros(0, np.int64)  # in the newest window

    def score(self, window: Window) -> tuple[Suspect, ...]:
        """Add a window. Returns the ranks that are late beyond chance now, the latest first."""
        late = lateness(window)
        bounds = Bounds.of(len(window.rank))
        self._compare_with_others(window)
        self._learn(window.rank)
        self._add(self._spread(window.rank, np.nan_to_num(late)), self._spread(window.rank, in_sigmas(late, bounds)))
        found: dict[int, Suspect] = {}
        for look in self._looks(window.rank) if not window.by_messages else ():
            for suspect in self._suspects(look, bounds):
                found.setdefault(suspect.rank, suspect)
        for suspect in self._late_for_long(window.rank):
            found.setdefault(suspect.rank, suspect)
        self._suspected = np.fromiter(found, np.int64)
        return tuple(sorted(found.values(), key=lambda suspect: (-suspect.share, suspect.rank)))

    def history(self, rank: int) -> tuple[Floats, Floats]:
        """Return the lateness of a rank in the windows that are kept, the oldest first, and the same in sigmas."""
        late = np.array([float(each[rank]) for each in self._late])
        return late, np.array([float(each[rank]) for each in self._sigmas])

    def _spread(self, rank: Numbers, values: Floats) -> NDArray[np.float32]:
        spread = np.zeros(self._world_size, np.float32)
        spread[rank] = values
        return spread

    def _add(self, late: NDArray[np.float32], sigmas: NDArray[np.float32]) -> None:
        for span, total in self._sums.items():
            total += sigmas
            if len(self._sigmas) >= span:
                total -= self._sigmas[-span]
        self._late.append(late)
        self._sigmas.append(sigmas)
        self._pauses.append(int((sigmas > PAUSE).sum()))

    def _compare_with_others(self, window: Window) -> None:
        """Forget the habit of ranks that are compared with another group from now on."""
        moved = self._home[window.rank] != window.home
        if moved.any():
            self._home[window.rank] = window.home
            self._habit[window.rank[moved]] = self._habits[window.rank[moved]] = 0.0

    def _learn(self, present: Numbers) -> None:
        """Let the window that is no longer among the newest SPANS[-1] count for habits, but for those of suspects."""
        if len(self._sigmas) < SPANS[-1]:
            return
        learns = present[~np.isin(present, self._suspected)] if len(self._suspected) else present
        counted = np.minimum(self._habits[learns] + 1.0, HABIT_MAX)
        self._habits[learns] = counted
        self._habit[learns] += (self._sigmas[0][learns] - self._habit[learns]) / counted

    def _looks(self, present: Numbers) -> Iterator["_Look"]:
        """Return all that ranks are compared by: the others, and what each of them used to be."""
        spans = [span for span in SPANS if len(self._sigmas) >= span]
        for span in spans:
            yield _Look(span=span, among=present, score=self._sums[span][present] / math.sqrt(span))
        known = present[self._habits[present] >= HABIT_MIN]
        if len(known) < FEW:
            return
        habit = self._habit[known]
        # What ranks differ by for good is in the noise of a window, and not in how they depart from their habits.
        # A habit is known no better than the mean of its windows is, which spreads habits as well.
        lasting = spread_of(np.sort(habit.astype(np.float32))) ** 2 - 1.0 / float(self._habits[known].min())
        least = math.sqrt(min(1.0, max(0.25, 1.0 - lasting)))
        for span in spans:
            wide = np.sqrt(1.0 + span / self._habits[known])
            score = (self._sums[span][known] - span * habit) / (math.sqrt(span) * wide)
            yield _Look(
                span=span, among=known, score=score, habit=self._habit, false=FALSE_HABIT_MAX, least=least, wide=wide
            )

    def _suspects(self, look: "_Look", bounds: Bounds) -> list[Suspect]:
        """Return who is late beyond chance in one comparison."""
        span, among = look.span, look.among
        over = levels(len(among), span, PAUSES_MIN, look.false)[0]
        if float(look.score.max()) <= over * look.least:
            return []
        spread = max(look.least, spread_of(np.sort(look.score.astype(np.float32))))
        places = np.flatnonzero(look.score > over * spread)
        limits = levels(len(among), span, self._pausing(among[places]), look.false)
        found = []
        for place in places.tolist():
            rank = int(among[place])
            late, sigmas = (
                np.array([float(each[-1 - i][rank]) for i in range(span)]) for each in (self._late, self._sigmas)
            )
            own = sigmas - look.habit[rank] if look.habit is not None else sigmas
            wide = spread * (float(look.wide[place]) if look.wide is not None else 1.0)
            far = own > LATE_SIGMAS[span] * look.least
            share, late_in = float(late.mean()), int(far.sum())
            if share < bounds.share_min or late_in < OFTEN[span] * span or far[: SPANS[0]].sum() < STILL:
                continue
            if beyond(own, wide, limits):
                score = float(look.score[place]) / spread
                found.append(
                    Suspect(
                        rank=rank, share=share, windows=span, late_in=late_in, score=score, warn_min=bounds.warn_min
                    )
                )
        return found

    def _late_for_long(self, present: Numbers) -> Iterator[Suspect]:
        """Return who is late among so few ranks that the late ones themselves are the spread."""
        for rank, share in few_ranks.late_for_long(self._late, present).items():
            yield Suspect(
                rank=rank, share=share, windows=few_ranks.WINDOWS, late_in=few_ranks.WINDOWS,
                score=few_ranks.SIGMAS_MIN, warn_min=few_ranks.WARN_MIN,
            )  # fmt: skip

    def _pausing(self, but: Numbers) -> float:
        """Return the probability of a pause of a rank in a window, by what all others than these had."""
        others = (self._world_size - len(but)) * len(self._sigmas)
        if not others:
            return PAUSES_MIN
        seen = sum(self._pauses) - sum(int((each[but] > PAUSE).sum()) for each in self._sigmas)
        sure = float(seen) if others >= PAUSES_SEEN_MIN else seen - PAUSES_SURE * math.sqrt(seen)
        # To four digits upwards, so that the same bounds serve again.
        return max(PAUSES_MIN, math.ceil(sure / others * 1e4) / 1e4)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One comparison of ranks over the newest windows. Arrays have one entry for each rank of `among`."""

    span: int
    among: Numbers
    score: Floats  # sum of the windows, in its standard deviations if windows are independent
    habit: Floats | None = None  # by rank: what is subtracted from each window
    false: float = FALSE_MAX
    least: float = 1.0  # spread of the scores that is believed at least
    wide: Floats | None = None  # how much wider than by its windows a sum is spread
