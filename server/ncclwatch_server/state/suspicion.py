"""Names what deserves a look in a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract import digests
from ncclwatch_server import limits
from ncclwatch_server.state.waits.chains import FROZEN_CODES

Table = Mapping[str, NDArray[Any]]  # the fields of rows that every tick looks at, see `digest_rows.SCREENED`


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What deserves a look. Empty in a healthy job."""

    waiting: tuple[int, ...] = ()  # in a wait that only peers can end, and still
    ended: tuple[int, ...] = ()  # while others are not
    silent: Mapping[int, float] = field(default_factory=dict)  # seconds since their node last spoke
    desynced: tuple[int, ...] = ()  # their histories differ, though nothing hangs
    uneven: tuple[int, ...] = ()  # they have unequal numbers of batches in one loop, though nothing hangs
    saving: tuple[int, ...] = ()  # they may be writing one file, or cannot write theirs
    sharing: tuple[int, ...] = ()  # on a device that another rank has, too, and may not
    stopped: tuple[int, ...] = ()  # by a signal or a debugger, for some time
    noted: tuple[int, ...] = ()  # they have found something about themselves that may be wrong
    drifted: tuple[int, ...] = ()  # they were not set up alike
    longest_wait_s: float = 0.0
    unheard: frozenset[int] = frozenset()  # of which nothing came lately: quiet does not mean health
    detached: frozenset[int] = frozenset()  # of which nobody sees what they do now

    def __bool__(self) -> bool:
        hinted = self.desynced or self.uneven or self.saving or self.sharing or self.noted or self.drifted
        return bool(self.waiting or self.ended or self.silent or self.stopped or hinted)


def saving(rows: Table, live: NDArray[np.bool_], rank: NDArray[np.int64]) -> tuple[int, ...]:
    """Return ranks that save to a file that another one saves to as well, or whose save is in trouble."""
    saves_to = rows["saves_to"]
    if not saves_to.any():
        return ()
    found = np.flatnonzero(live & (saves_to != 0))
    if not len(found):
        return ()
    _, which, count = np.unique(saves_to[found], return_inverse=True, return_counts=True)
    odd = (count[which.reshape(-1)] > 1) | (saves_to[found] == digests.SAVE_TROUBLE)
    return tuple(rank[found[odd]][: limits.SAVING_MAX].tolist())


def stopped(rows: Table, live: NDArray[np.bool_], rank: NDArray[np.int64]) -> tuple[int, ...]:
    """Return ranks that were stopped some time ago: a debugger that takes a look stops one for a moment."""
    still = live & (rows["pulse_age_s"] > limits.WAIT_S)
    if not still.any():
        return ()
    return tuple(rank[still & np.isin(rows["state"], FROZEN_CODES)][: limits.NOTED_MAX].tolist())


def detached(rows: Table, live: NDArray[np.bool_], rank: NDArray[np.int64]) -> frozenset[int]:
    """Return ranks that live and have detached, or whose pulse has failed."""
    told = rows["detached"] != 0
    return frozenset(rank[live & told].tolist()) if told.any() else frozenset()


def noted(rows: Table, live: NDArray[np.bool_], rank: NDArray[np.int64]) -> tuple[int, ...]:
    """Return ranks that have something to tell about themselves."""
    told = rows["noted"] != 0
    return tuple(rank[live & told][: limits.NOTED_MAX].tolist()) if told.any() else ()


class Sharing:
    """Knows who is on one device with another rank, though each says that it must be its own."""

    __slots__ = ("_device", "_shared", "_some")

    def __init__(self, rows: int) -> None:
        self._device = np.zeros(rows, np.uint64)  # as of the last look
        self._shared = np.zeros(rows, np.bool_)  # rows that did then
        self._some = False

    def ranks(
        self,
        device: NDArray[np.uint64],
        live: NDArray[np.bool_],
        reporting: NDArray[np.bool_],
        rank: NDArray[np.int64],
    ) -> tuple[int, ...]:
        """Return the ranks of the rows that share one and live. Sorted out when a device changes."""
        if not np.array_equal(device, self._device):
            self._device = device.copy()
            own = reporting & (device != 0)
            keys, times = np.unique(device[own], return_counts=True)
            self._shared = own & np.isin(device, keys[times > 1])
            self._some = bool(self._shared.any())
        if not self._some:
            return ()
        return tuple(rank[live & self._shared][: limits.NOTED_MAX].tolist())
