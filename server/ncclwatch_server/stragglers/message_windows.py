"""Measures for how much of the time each rank of a job without common collectives waited for messages.

A pipeline that only sends and receives has no operation that all ranks cut at. But each of them moves as fast as all:
whatever time a rank does not wait, it works, so the one that waits least holds the others up. A wait that is not over
counts as far as it has come. A window is over once every rank has issued an operation: what stands still is not slow.
"""

import numpy as np

from ncclwatch.contract.digests import WAIT_KINDS
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch_server.stragglers.windows import Numbers, Rows, Window

WINDOW_S = 1.8  # digests come once a second
_MASK = (1 << 32) - 1
_MESSAGES = (WAIT_KINDS.index(WaitKind.SEND), WAIT_KINDS.index(WaitKind.RECV))


class MessageWindows:
    """What each rank has waited for messages since the newest cut. Bounded by the world size."""

    def __init__(self) -> None:
        self._rank: Numbers = np.zeros(0, np.int64)
        self._waited_ms: Numbers = np.zeros(0, np.int64)
        self._issued = np.zeros(0, np.uint64)
        self._at = 0.0

    def cut(self, rows: Rows, rank: Numbers, now: float) -> Window | None:
        """Take the newest rows of the ranks that live. Returns a window now and then, where there are messages."""
        if now - self._at < WINDOW_S or len(rank) < 2 or rows["pace_group"].any():
            return None
        known = np.array_equal(rank, self._rank)
        if known and not (rows["issued"] > self._issued).all():
            return None
        waits = np.isin(rows["wait_kind"], _MESSAGES)
        waited_ms = rows["peers_ms"].astype(np.int64) + (rows["wait_age_s"] * 1e3 * waits).astype(np.int64)
        passed_s, self._at = now - self._at, now
        grown = (waited_ms - self._waited_ms) & _MASK if known else np.zeros(len(rank), np.int64)
        self._rank, self._waited_ms, self._issued = rank.copy(), waited_ms, rows["issued"].copy()
        grown[grown > _MASK // 2] = 0  # a wait was longer on its way than when it was over
        if not grown.any():
            return None
        return Window(
            rank=rank.copy(),
            home=np.ones(len(rank), np.uint64),
            blocked=np.clip(grown / (passed_s * 1e3), 0.0, 1.0),
            span_s=np.full(len(rank), passed_s),
            operations=np.zeros(len(rank), np.int64),
            by_messages=True,
        )
