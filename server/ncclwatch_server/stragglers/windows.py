"""Measures for how much of the time each rank was blocked, over the same operations as its like.

Agents report, for a group that each rank uses often, how long the rank had been blocked in all as of one collective
of the group (`digests.RANK_FIELDS`, from pace_group on). All members cut at the same collectives; where all of them
show the same one, a window ends. A total over all groups carries the blame through them: a rank that is late here
because it waited elsewhere has waited, and only the one that nobody kept waiting has not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Rows = NDArray[np.void]

_WRAP = 1 << 32  # of boundaries, and of milliseconds
_MASK = _WRAP - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One stretch of a job. All arrays have one entry for each rank in it."""

    rank: Numbers
    home: NDArray[np.uint64]  # key of the group whose members it is compared with
    blocked: Floats  # share of the time, 0..1
    span_s: Floats  # by the rank's own clock
    operations: Numbers  # of the home group
    by_messages: bool = False  # blocked in sends and receives, and cut by time: see `message_windows`


class Windows:
    """The cuts of one job, rank by rank. Bounded by its world size."""

    def __init__(self, world_size: int) -> None:
        self._home = np.zeros(world_size, np.uint64)
        self._seq = np.zeros(world_size, np.int64)
        self._ms = np.zeros(world_size, np.int64)
        self._waited = np.zeros(world_size, np.uint64)
        # Since the last window was returned.
        self._blocked_ns = np.zeros(world_size)
        self._span_ms = np.zeros(world_size)
        self._operations = np.zeros(world_size, np.int64)
        self._groups = _Groups(np.zeros(0, np.uint64))  # as they were last

    def cut(self, rows: Rows, rank: Numbers) -> Window | None:
        """Take the newest rows of the ranks that live. Returns a window once every group has completed one."""
        key, seq = rows["pace_group"].copy(), rows["pace_seq"].astype(np.int64)
        if not key.all():
            known = key != 0
            rows, rank, key, seq = rows[known], rank[known], key[known], seq[known]
        if len(rank) < 2:
            return None
        groups = self._numbered(key)
        at_one = groups.alike(seq)
        if at_one is None:  # as at most moments: some have told of a boundary that others have not come to yet
            return None
        # Where an agent has begun to cut less often, its newest boundary is an older one for a while.
        at = _places(rank, len(self._seq))
        ahead = (seq - self._seq[at]) & _MASK
        further = (ahead > 0) & (ahead < _WRAP // 2)
        moved = at_one & (further | (key != self._home[at]))
        if not moved.any():
            return None
        self._advance(rows, rank, moved, groups)
        full = self._span_ms[at] > 0
        return self._cut(rank, at) if full.all() else None

    def _numbered(self, key: NDArray[np.uint64]) -> "_Groups":
        """Return which rows are of one group. Sorted out anew when a group comes or goes."""
        if not np.array_equal(key, self._groups.key):
            self._groups = _Groups(key)
        return self._groups

    def _advance(self, rows: Rows, rank: Numbers, moved: NDArray[np.bool_], groups: "_Groups") -> None:
        """Add what has happened since the last boundary, where all members of a group have passed the same two."""
        key, waited = rows["pace_group"].copy(), rows["pace_waited_ns"].copy()
        seq, ms = rows["pace_seq"].astype(np.int64), rows["pace_ms"].astype(np.int64)
        at = _places(rank, len(self._seq))
        same_home = (key == self._home[at]) & (self._seq[at] > 0)
        before = np.where(same_home, self._seq[at], -1)
        began_alike = groups.alike(before)
        counted = moved & same_home & (False if began_alike is None else began_alike)
        some, who = (slice(None), at) if counted.all() else (counted, rank[counted])
        self._blocked_ns[who] += (waited[some] - self._waited[who]).astype(np.int64)
        self._span_ms[who] += (ms[some] - self._ms[who]) & _MASK
        self._operations[who] += (seq[some] - self._seq[who]) & _MASK
        some, who = (slice(None), at) if moved.all() else (moved, rank[moved])
        self._home[who], self._seq[who] = key[some], seq[some]
        self._ms[who], self._waited[who] = ms[some], waited[some]

    def _cut(self, rank: Numbers, at: Numbers | slice) -> Window:
        span_ms = self._span_ms[at]
        found = Window(
            rank=rank.copy(),
            home=self._home[at].copy(),
            blocked=np.clip(self._blocked_ns[at] / (span_ms * 1e6), 0.0, 1.0),
            span_s=span_ms / 1e3,
            operations=self._operations[at].copy(),
        )
        for column in (self._blocked_ns, self._span_ms, self._operations):
            column[:] = 0
        return found


def _places(rank: Numbers, world_size: int) -> Numbers | slice:
    """Return where the ranks lie in an array by rank: all of them in order are had without gathering them."""
    everyone = len(rank) == world_size and bool((rank[1:] > rank[:-1]).all())
    return slice(None) if everyone else rank


class _Groups:
    """Which rows are of one group, by its key in each row."""

    def __init__(self, key: NDArray[np.uint64]) -> None:
        self.key = key
        _, self._group, sizes = np.unique(key, return_inverse=True, return_counts=True)
        self._order = np.argsort(self._group.reshape(-1), kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]

    def alike(self, values: Numbers) -> NDArray[np.bool_] | None:
        """Return for each row whether all rows of its group have one value; None: no group does."""
        if len(self._starts) == 1:
            return np.ones(len(values), np.bool_) if int(values.min()) == int(values.max()) else None
        ordered = values[self._order]
        one = np.minimum.reduceat(ordered, self._starts) == np.maximum.reduceat(ordered, self._starts)
        alike: NDArray[np.bool_] = one[self._group.reshape(-1)]
        return alike if one.any() else None
