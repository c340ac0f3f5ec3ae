"""Looks now and then for ranks that have issued equally much in a group, and not the same."""

import numpy as np

from ncclwatch_server import limits
from ncclwatch_server.state.digest_rows import Numbers, Rows
from ncclwatch_server.state.group_index import Topology


class Comparison:
    """Of the rows of one job's groups, of a big job portion by portion."""

    __slots__ = ("_apart_at", "_from", "_next_at", "apart")

    def __init__(self) -> None:
        self.apart: tuple[int, ...] = ()  # some ranks of both sides, where a difference was seen lately
        self._apart_at = -np.inf  # when one was seen last
        self._next_at = -np.inf
        self._from = 0  # number of the group

    def begin_anew(self) -> None:
        """Note that the rows lie elsewhere now."""
        self._from = 0

    def is_due(self, now: float) -> bool:
        """Whether it is time to compare again."""
        return now >= self._next_at

    def compare(self, topology: Topology, groups: Rows, row_rank: Numbers, now: float) -> bool:
        """Compare the next portion. Returns whether the rows are still of what the topology says."""
        rows_max = max(limits.DESYNC_ROWS_MIN, len(groups) // limits.DESYNC_PORTIONS)
        first, end = self._from, topology.portion(self._from, rows_max) if topology.groups else 0
        apart = topology.apart(groups, first, end)
        seen = _both_ends(groups, apart, row_rank) if apart is not None else ()
        remembered = now - self._apart_at <= limits.DESYNC_REMEMBERED_S
        again_s = limits.DESYNC_EVERY_S
        if topology.groups and not (seen or remembered):  # on to the next portion; else the same one is looked at again
            self._from = end % topology.groups
            again_s *= min(1.0, rows_max / max(1, len(topology.order)))
        self._next_at = now + max(limits.TICK_S, again_s)
        # One torn look at a ring is no difference: it has to be there twice. In between, nodes may report at moments at
        # which counts differ and nothing can be compared.
        if not remembered:
            self.apart = ()
        elif seen:
            self.apart = seen
        if seen:
            self._apart_at = now
        return apart is not None


def _both_ends(groups: Rows, rows: Numbers, row_rank: Numbers) -> tuple[int, ...]:
    """Return some ranks of rows sorted by hash, so that at least two hashes are among them; () if there are none."""
    if not len(rows):
        return ()
    prefix = groups["prefix_hash"][rows]
    change = int(np.argmax(prefix != prefix[0]))
    few = np.concatenate([rows[: limits.DESYNC_RANKS_MAX], rows[change : change + 1], rows[-limits.DESYNC_RANKS_MAX :]])
    return tuple(np.unique(row_rank[few]).tolist())
