"""Holds what a thread needs to make figures of a job, as of one moment."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclwatch_server.state.digest_rows import Numbers, Rows
from ncclwatch_server.state.group_index import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a thread needs to make figures of a job. Arrays are by rank where not said otherwise.

    The two tables are the living ones, since copying them takes milliseconds: a thread copies what it reads, and of a
    digest that comes meanwhile it may see half. What rows are of does not change in one layout, and is told apart.
    """

    ranks: Rows
    groups: Rows
    row_rank: Numbers  # by row of `ranks`
    group_rank: Numbers  # by row of `groups`
    reporting: NDArray[np.bool_]  # by row of `ranks`: its connection speaks for the rank
    topology: Topology | None  # of `groups`, or of an earlier layout of them
    seen: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    owner: Numbers
    moved_ago_s: NDArray[np.float64]  # since something was issued or completed; infinity: never
    heard: tuple[dict[int, int], NDArray[np.float64]]  # place by connection, moments by place
    now: float

    def heard_ago_s(self, link: int) -> float:
        """Return for how long a connection has been quiet; 0 if it has said nothing yet."""
        places, moments = self.heard
        return float(self.now - moments[places[link]]) if link in places else 0.0
