"""Finds the rows of all digests that belong to one group: sorted when groups come or go, looked up at every tick.

A group is told by its key, so by its name and its members (`contract.groups`). A rank that does not know the members of
one of its groups is in it all the same: it counts as of the group of that name that most ranks hold.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.groups import MEMBERS_KNOWN

Rows = NDArray[np.void]
Numbers = NDArray[np.int64]
Keys = NDArray[np.uint64]

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The group rows of a job, put in order by group. Groups are numbered by their keys."""

    column: Keys  # the key of each row's group, and the rank of each row, as they were when this was made
    members: NDArray[np.int32]
    in_order: tuple[Keys, NDArray[np.int32]]  # the same, group by group
    keys: Keys  # of the groups, sorted
    names: NDArray[np.uint32]  # `groups.name_key` of each of them
    told: tuple[Keys, Numbers]  # the keys that rows have, sorted, and the number of the group that each stands for
    number: Numbers  # of each row's group
    order: Numbers  # rows, group by group
    starts: Numbers  # where each group begins in `order`, and where the last one ends

    @classmethod
    def of(cls, groups: Rows) -> "Topology":
        """Return the order of these rows."""
        column = groups["group"].copy()
        belongs = _adopted(column, groups["name"])
        keys, number, sizes = np.unique(belongs, return_inverse=True, return_counts=True)
        number = number.reshape(-1).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        order = np.argsort(number, kind="stable")
        first = order[starts[:-1]]
        told, at = (keys, first) if belongs is column else np.unique(column, return_index=True)
        return cls(
            column=column,
            members=groups["rank"].copy(),
            in_order=(column[order], groups["rank"][order]),
            keys=keys,
            names=groups["name"][first],
            told=(told, number[at]),
            number=number,
            order=order,
            starts=starts,
        )

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.keys)

    def fits(self, groups: Rows) -> bool:
        """Whether all rows are still of the same ranks and groups."""
        return np.array_equal(groups["group"], self.column) and np.array_equal(groups["rank"], self.members)

    def number_of(self, told: Keys) -> Numbers:
        """Return the number of the group with each of these keys as ranks tell them; -1: there is none."""
        known, numbers = self.told
        if not len(known):
            return np.full(len(told), -1, np.int64)
        place = np.minimum(np.searchsorted(known, told), len(known) - 1)
        return np.where(known[place] == told, numbers[place], -1)

    def rows_of(self, first: int, end: int) -> Numbers:
        """Return the rows of the groups with these numbers, the last one left out."""
        return self.order[self.starts[first] : self.starts[end]]

    def portion(self, first: int, rows_max: int) -> int:
        """Return where the groups end that can be looked at together: at least one, of at most so many rows."""
        end = int(np.searchsorted(self.starts, self.starts[first] + rows_max, "right")) - 1
        return max(end, first + 1)

    def apart(self, groups: Rows, first: int, end: int) -> Numbers | None:
        """Return the rows of members that have issued most in their group, and not the same, sorted by hash.

        Of the first such group from `first` on; none if there is none before `end`. Who is behind is compared
        another time: in a healthy job all are at the front by turns. None where these rows are of other ranks or
        groups by now.
        """
        rows = self.rows_of(first, end)
        if not len(rows):
            return _NOTHING
        place = slice(self.starts[first], self.starts[end])
        # They lie all over the table: each is fetched once, whole.
        words = groups.view(np.uint64).reshape(len(groups), -1)
        part = np.take(words, rows, axis=0).view(groups.dtype).reshape(-1)
        keys, members = self.in_order
        if not ((part["group"] == keys[place]).all() and (part["rank"] == members[place]).all()):
            return None
        starts = self.starts[first:end] - self.starts[first]
        enqueued, prefix = part["enqueued"], part["prefix_hash"]
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


def _adopted(column: Keys, name: NDArray[np.uint32]) -> Keys:
    """Return the keys of rows, those without members with the key of the group that most rows of their name have."""
    unknown = column < MEMBERS_KNOWN
    if not unknown.any():
        return column
    rows = np.flatnonzero(~unknown & np.isin(name, name[unknown]))
    if not len(rows):
        return column
    keys, first, sizes = np.unique(column[rows], return_index=True, return_counts=True)
    names = name[rows][first]
    order = np.lexsort((-sizes, names))
    names, of_name = np.unique(names[order], return_index=True)
    most = keys[order][of_name]
    place = np.minimum(np.searchsorted(names, name), len(names) - 1)
    return np.where(unknown & (names[place] == name), most[place], column)
