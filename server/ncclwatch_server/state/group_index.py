"""Finds the rows of all digests that belong to one group: sorted when groups come or go, looked up at every tick."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.void]
Numbers = NDArray[np.int64]
Keys = NDArray[np.uint64]

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The group rows of a job, put in order by group. Groups are numbered by their keys."""

    column: Keys  # the key of each row's group, and the rank of each row, as they were when this was made
    members: NDArray[np.int32]
    keys: Keys  # of the groups, sorted
    number: Numbers  # of each row's group
    order: Numbers  # rows, group by group
    starts: Numbers  # where each group begins in `order`, and where the last one ends

    @classmethod
    def of(cls, groups: Rows) -> "Topology":
        """Return the order of these rows."""
        column = groups["group"].copy()
        keys, number, sizes = np.unique(column, return_inverse=True, return_counts=True)
        number = number.reshape(-1).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(
            column=column,
            members=groups["rank"].copy(),
            keys=keys,
            number=number,
            order=np.argsort(number, kind="stable"),
            starts=starts,
        )

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.keys)

    def fits(self, groups: Rows, rows: Numbers | slice = slice(None)) -> bool:
        """Whether some rows, or all, are still of the same ranks and groups."""
        return np.array_equal(groups["group"][rows], self.column[rows]) and np.array_equal(
            groups["rank"][rows], self.members[rows]
        )

    def rows_of(self, first: int, end: int) -> Numbers:
        """Return the rows of the groups with these numbers, the last one left out."""
        return self.order[self.starts[first] : self.starts[end]]

    def portion(self, first: int, rows_max: int) -> int:
        """Return where the groups end that can be looked at together: at least one, of at most so many rows."""
        end = int(np.searchsorted(self.starts, self.starts[first] + rows_max, "right")) - 1
        return max(end, first + 1)

    def apart(self, groups: Rows, first: int, end: int) -> Numbers:
        """Return the rows of members that have issued most in their group, and not the same, sorted by hash.

        Of the first such group from `first` on; none if there is none before `end`. Who is behind is compared
        another time: in a healthy job all are at the front by turns.
        """
        rows = self.rows_of(first, end)
        if not len(rows):
            return _NOTHING
        starts = self.starts[first:end] - self.starts[first]
        enqueued, prefix = groups["enqueued"][rows], groups["prefix_hash"][rows]
        sizes = np.diff(self.starts[first : end + 1])
        at_front = enqueued == np.repeat(np.maximum.reduceat(enqueued, starts), sizes)
        lowest = np.minimum.reduceat(np.where(at_front, prefix, np.iinfo(np.uint64).max), starts)
        highest = np.maximum.reduceat(np.where(at_front, prefix, 0), starts)
        found = np.flatnonzero(lowest != highest)
        if not len(found):
            return _NOTHING
        mine = slice(int(starts[found[0]]), int(starts[found[0]] + sizes[found[0]]))
        front: Numbers = rows[mine][at_front[mine]]
        return np.take(front, np.argsort(groups["prefix_hash"][front], kind="stable"))
