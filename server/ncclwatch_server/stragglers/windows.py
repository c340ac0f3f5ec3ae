"""For how much of the time was each rank blocked, over the same operations as its like?

Agents report, for a group that each rank uses often, how long the rank had been blocked in all as of one collective
of the group (`wire.RANK_FIELDS`, from pace_group on). All members cut at the same collectives; where all of them
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One stretch of a job. All arrays have one entry for each rank in it."""

    rank: Numbers
    home: NDArray[np.uint64]  # key of the group whose members it is compared with
    blocked: Floats  # share of the time, 0..1
    span_s: Floats  # by the rank's own clock
    operations: Numbers  # of the home group


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
        self._column = np.zeros(0, np.uint64)  # the groups that were numbered last
        self._group = np.zeros(0, np.int64)
        self._groups = 0

    def take(self, rows: Rows, rank: Numbers) -> Window | None:
        """Take the newest rows of the ranks that live. Returns a window once every group has completed one."""
        known = rows["pace_group"] != 0
        if not known.all():
            rows, rank = rows[known], rank[known]
        if len(rank) < 2:
            return None
        group = self._number(rows["pace_group"])
        seq = rows["pace_seq"].astype(np.int64)
        at_one = _alike(seq, group, self._groups)[group]
        # Where an agent has begun to cut less often, its newest boundary is an older one for a while.
        ahead = (seq - self._seq[rank]) % _WRAP
        further = (ahead > 0) & (ahead < _WRAP // 2)
        moved = at_one & (further | (rows["pace_group"] != self._home[rank]))
        if moved.any():
            self._advance(rows, rank, moved, group)
        full = self._span_ms[rank] > 0
        return self._cut(rank) if full.all() else None

    def _number(self, column: NDArray[np.uint64]) -> Numbers:
        """Return the number of each row's group. Sorted out anew when a group comes or goes."""
        if not np.array_equal(column, self._column):
            self._column = column.copy()
            keys, group = np.unique(column, return_inverse=True)
            self._group, self._groups = group.reshape(-1).astype(np.int64), len(keys)
        return self._group

    def _advance(self, rows: Rows, rank: Numbers, moved: NDArray[np.bool_], group: Numbers) -> None:
        """Add what has happened since the last boundary, where all members of a group have passed the same two."""
        seq, ms = rows["pace_seq"].astype(np.int64), rows["pace_ms"].astype(np.int64)
        same_home = (rows["pace_group"] == self._home[rank]) & (self._seq[rank] > 0)
        before = np.where(same_home, self._seq[rank], -1)
        counted = moved & _alike(before, group, self._groups)[group] & same_home
        who = rank[counted]
        grown = rows["pace_waited_ns"][counted] - self._waited[who]
        self._blocked_ns[who] += grown.astype(np.int64)
        self._span_ms[who] += (ms[counted] - self._ms[who]) % _WRAP
        self._operations[who] += (seq[counted] - self._seq[who]) % _WRAP
        who = rank[moved]
        self._home[who], self._seq[who] = rows["pace_group"][moved], seq[moved]
        self._ms[who], self._waited[who] = ms[moved], rows["pace_waited_ns"][moved]

    def _cut(self, rank: Numbers) -> Window:
        span_ms = self._span_ms[rank]
        found = Window(
            rank=rank.copy(),
            home=self._home[rank],
            blocked=np.clip(self._blocked_ns[rank] / (span_ms * 1e6), 0.0, 1.0),
            span_s=span_ms / 1e3,
            operations=self._operations[rank],
        )
        for column in (self._blocked_ns, self._span_ms, self._operations):
            column[:] = 0
        return found


def _alike(values: Numbers, group: Numbers, groups: int) -> NDArray[np.bool_]:
    """Return for each group whether all of its members have the same value."""
    lowest, highest = np.full(groups, np.iinfo(np.int64).max), np.full(groups, np.iinfo(np.int64).min)
    np.minimum.at(lowest, group, values)
    np.maximum.at(highest, group, values)
    alike: NDArray[np.bool_] = lowest == highest
    return alike
