"""Says what kept a late rank from its work: what it has spent more time in than its like.

One thing may show as two: a loader that gets no core is slow in loading and waits for a core. What lies deeper is
asked first.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.model.slowness import SlowKind
from ncclwatch_server.stragglers.windows import Floats, Numbers, Rows

# Columns of a digest, the deepest cause first.
SPENT: tuple[tuple[str, SlowKind], ...] = (
    ("stopped_ms", SlowKind.STOPPED),
    ("throttled_ms", SlowKind.CPU_THROTTLING),
    ("stolen_ms", SlowKind.CPU_STEAL),
    ("queued_ms", SlowKind.CPU_CONTENTION),
    ("gc_ms", SlowKind.GARBAGE_COLLECTION),
    ("disk_ms", SlowKind.HOST_IO),
    ("save_ms", SlowKind.SAVING),
    ("data_ms", SlowKind.DATA_LOADING),
    ("ran_ms", SlowKind.COMPUTE),
)
# As they lie side by side in a row of a digest; peers_ms is blocked in sends and receives.
_SIDE_BY_SIDE = ("data_ms", "gc_ms", "save_ms", "peers_ms", "queued_ms", "ran_ms", "throttled_ms", "stolen_ms",
                 "stopped_ms", "disk_ms")  # fmt: skip
_COLUMN = {name: place for place, name in enumerate(_SIDE_BY_SIDE)}
_OF_KIND = {kind: _COLUMN[name] for name, kind in SPENT}
_QUEUED, _RAN, _PEERS = (_COLUMN[name] for name in ("queued_ms", "ran_ms", "peers_ms"))
RAN_MIN = 0.001  # of the time; less says nothing of how long one has to wait for a core
EXPLAINS = 0.4  # of a rank's lateness must be accounted for
CROWDED = 0.6  # the same of waiting for a core: on a busy host some of that comes with any work
NEWEST_SHARE = 0.3  # of the newest window in what counts as a rank's usual
SHARE_MAX = 1.5  # totals are read up to a second apart from the boundaries of a window


class Spending:
    """How much of the time each rank spends in each of SPENT, of late. Bounded by the world size."""

    def __init__(self, world_size: int) -> None:
        self._before = np.zeros((world_size, len(_SIDE_BY_SIDE)), np.uint32)
        self._shares = np.zeros((world_size, len(_SIDE_BY_SIDE)), np.float32)
        self._newest_s = np.zeros((world_size, len(_SIDE_BY_SIDE)), np.float32)  # in the newest window
        self._seen = np.zeros(world_size, np.int64)  # times
        self._at = 0.0

    def add_rows(self, rows: Rows, rank: Numbers, now: float) -> None:
        """Add the totals at the end of a window."""
        passed_ms = (now - self._at) * 1e3
        self._at = now
        everyone = len(rank) == len(self._seen)
        who: Numbers | slice = slice(None) if everyone and bool((np.diff(rank) == 1).all()) else rank
        totals = _side_by_side(rows)
        grown = totals - self._before[who]  # totals wrap, and so does this
        self._before[who] = totals
        if passed_ms <= 0:
            return
        shares = grown.astype(np.float32)
        shares *= np.float32(1.0 / passed_ms)
        np.minimum(shares, np.float32(SHARE_MAX), out=shares)
        seen = self._seen[who]
        self._newest_s[who] = shares * ((seen > 0) * np.float32(passed_ms / 1e3))[:, None]
        # The first totals have no beginning, and the first share counts in full.
        weight = np.select([seen == 0, seen == 1], [0.0, 1.0], NEWEST_SHARE).astype(np.float32)[:, None]
        shares -= self._shares[who]
        shares *= weight
        self._shares[who] += shares
        self._seen[who] += 1

    def newest_s(self, kinds: Sequence[SlowKind], rank: Numbers) -> NDArray[np.float32]:
        """Return the seconds that ranks spent in each kind in the newest window, (kinds, ranks)."""
        columns = np.array([_OF_KIND[kind] for kind in kinds])
        newest: NDArray[np.float32] = self._newest_s[rank[:, None], columns].T
        return newest

    def excess(self, rank: int, like: Numbers) -> dict[SlowKind, float]:
        """Return how much more of its time a rank spends in each kind than the median of its like."""
        others = like[like != rank]
        usual = np.median(self._shares[others], axis=0) if len(others) else np.zeros(len(_SIDE_BY_SIDE))
        found = {kind: float(self._shares[rank, i] - usual[i]) for kind, i in _OF_KIND.items()}
        # On a host with too few cores whoever has more to do also waits more for a core: that much is its work's fault.
        if usual[_RAN] >= RAN_MIN:
            found[SlowKind.CPU_CONTENTION] = float(
                self._shares[rank, _QUEUED] - usual[_QUEUED] * max(1.0, self._shares[rank, _RAN] / usual[_RAN])
            )
        return found

    def messages(self, rank: Numbers) -> Floats:
        """Return the share of their time that ranks are blocked in sends and receives."""
        found: Floats = self._shares[rank, _PEERS].astype(np.float64)
        return found

    def share(self, kind: SlowKind, rank: int) -> float:
        """Return how much of its time a rank spends in a kind."""
        return float(self._shares[rank, _OF_KIND[kind]])


def _side_by_side(rows: Rows) -> NDArray[np.uint32]:
    """Return the columns of _SIDE_BY_SIDE, (rows, columns): in one pass over the rows, not one for each column."""
    assert rows.dtype.fields is not None
    offset = rows.dtype.fields[_SIDE_BY_SIDE[0]][1]
    return np.ndarray((len(rows), len(_SIDE_BY_SIDE)), np.uint32, rows, offset, (rows.strides[0], 4)).copy()


def kind_of(late: float, excess: Mapping[SlowKind, float], gpu_slow: int) -> SlowKind:
    """Return what keeps a rank that is late by this share of the time."""
    for _, kind in SPENT:
        enough = CROWDED if kind is SlowKind.CPU_CONTENTION else EXPLAINS
        if excess.get(kind, 0.0) >= enough * late and kind is not SlowKind.COMPUTE:
            return kind
    if gpu_slow:
        return SlowKind.GPU
    return SlowKind.COMPUTE if excess.get(SlowKind.COMPUTE, 0.0) >= EXPLAINS * late else SlowKind.OUTSIDE


def members(home: NDArray[np.uint64], rank: Numbers, of: int) -> Numbers:
    """Return the ranks that a rank is compared with, itself among them."""
    own = home[rank == of]
    return rank[home == own[0]] if len(own) else np.zeros(0, np.int64)
