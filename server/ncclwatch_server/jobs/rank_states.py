"""Names the state of each rank at this moment, in one word that a colour stands for.

Only what digests say, and whom an open incident blames. The states are numbered by how bad they are: where many
ranks share one row of pixels, the worst one is shown, so that one of 16,384 is seen.
"""

from collections.abc import Iterable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.digests import PROCESS_STATES
from ncclwatch.contract.model.rank import ProcessState
from ncclwatch_server import limits
from ncclwatch_server.state.picture import Picture

MOVED_S = 1.6  # a rank that has issued or completed something since the digest before the last one moves
LONG_S = 10.0
_FROZEN = tuple(PROCESS_STATES.index(state) for state in (ProcessState.STOPPED, ProcessState.TRACED))


class RankState(IntEnum):
    """What a rank does, the worst last."""

    ABSENT = 0
    ENDED = 1
    MOVING = 2
    WORKING = 3
    WAITING = 4
    LONG_WAITING = 5
    DETACHED = 6
    SILENT = 7
    FROZEN = 8
    LOST = 9
    BLAMED = 10

    @property
    def words(self) -> str:
        """Return what a legend says."""
        return _WORDS[self]

    @property
    def slug(self) -> str:
        """Return the name as stylesheets have it."""
        return self.name.lower().replace("_", "-")


_WORDS = {
    RankState.ABSENT: "not seen yet",
    RankState.ENDED: "ended",
    RankState.MOVING: "communicates",
    RankState.WORKING: "works, in no operation",
    RankState.WAITING: "waits for others",
    RankState.LONG_WAITING: f"waits for others, over {LONG_S:.0f} s",
    RankState.DETACHED: "not watched: detached, or its pulse failed",
    RankState.SILENT: "its node is silent",
    RankState.FROZEN: "stopped",
    RankState.LOST: "ended while others wait",
    RankState.BLAMED: "blamed by an open incident",
}

States = NDArray[np.uint8]


def states_of(picture: Picture, *, silent: Iterable[int] = (), blamed: Iterable[int] = ()) -> States:
    """Return the state of every rank, as uint8 of the length of the world."""
    found = np.where(picture.seen, np.uint8(RankState.SILENT), np.uint8(RankState.ABSENT))
    at = picture.reporting
    rank, wait_s = picture.row_rank[at], picture.ranks["wait_age_s"][at]
    state = np.full(len(rank), RankState.WORKING, np.uint8)
    state[picture.moved_ago_s[rank] < MOVED_S] = RankState.MOVING
    state[wait_s > limits.WAIT_S] = RankState.WAITING
    state[wait_s > LONG_S] = RankState.LONG_WAITING
    process = picture.ranks["state"][at]
    for frozen in _FROZEN:  # np.isin takes as long as all the rest of a small job
        state[process == frozen] = RankState.FROZEN
    found[rank] = state
    found[np.fromiter(silent, np.int64)] = RankState.SILENT
    found[rank[picture.ranks["detached"][at] != 0]] = RankState.DETACHED  # also of a silent node
    waiting = bool(((state == RankState.WAITING) | (state == RankState.LONG_WAITING)).any())
    found[picture.ended] = RankState.LOST if waiting else RankState.ENDED
    inside = [each for each in blamed if 0 <= each < len(found)]
    found[inside] = RankState.BLAMED
    return found


def counted(states: States) -> dict[RankState, int]:
    """Return how many ranks are in each state, the worst first, those without any left out."""
    counts = np.bincount(states, minlength=len(RankState)).tolist()
    return {state: counts[state] for state in sorted(RankState, reverse=True) if counts[state]}
