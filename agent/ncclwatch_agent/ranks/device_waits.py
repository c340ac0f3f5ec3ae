"""Learns how long a rank's device usually needs, and says when a wait for it is unusually long.

On a GPU the host runs ahead, so in a healthy job there is always an unfinished collective, as old as a step is long.
A server that looked at every such wait would look all the time.

Which sends and receives a device is in the ring says only while the rank issues none.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import Flag, PeerFlag, Word
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.rows import GroupRow, PeerRow
from ncclwatch.contract.ring.views import age_s, pending_message

WAIT_S_MIN = 0.5  # shorter ones are no waits
NEWEST_SHARE = 0.3  # of the newest wait in what counts as usual
UNUSUAL = 2.0  # times the usual
PATIENCE_S_MAX = 20.0


class DeviceHabit:
    """What one rank's device usually needs. Ages are in seconds."""

    def __init__(self) -> None:
        self._usual_s = 0.0
        self._before_s = 0.0

    def unusual_s(self, pending_s: float) -> float:
        """Return the age of the oldest unfinished operation if it is unusual, else 0. To be told every second."""
        if pending_s < self._before_s >= WAIT_S_MIN:  # that one has ended
            known = self._usual_s or self._before_s
            self._usual_s = known + NEWEST_SHARE * (self._before_s - known)
        self._before_s = pending_s
        return pending_s if pending_s >= min(UNUSUAL * self._usual_s, PATIENCE_S_MAX) else 0.0


class Message(NamedTuple):
    """A send or a receive that a device is in."""

    group: GroupRow
    peer: int
    kind: WaitKind
    age_s: float


class MessageAges:
    """Finds the oldest message that one rank's device is in; each is looked for once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, Op], tuple[int, int]] = {}  # -> (how many are through, stamp of the next one)

    def oldest(self, ring: Ring, groups: Sequence[GroupRow], now_ns: int) -> Message | None:
        """Return it, None if there is none or nobody tells."""
        told = {row.number: row for row in groups if row.flags & Flag.ASYNC and not row.flags & Flag.BLIND}
        if not told or not ring.words()[Word.PEERS_USED]:
            return None
        found = []
        for row in ring.peers():
            if row.group in told and row.flags & PeerFlag.SENDING:
                found.append(self._message(ring, told[row.group], row, Op.SEND, now_ns))
            if row.group in told and row.flags & PeerFlag.RECEIVING:
                found.append(self._message(ring, told[row.group], row, Op.RECV, now_ns))
        return max(found, key=lambda each: each.age_s, default=None)

    def _message(self, ring: Ring, group: GroupRow, row: PeerRow, op: Op, now_ns: int) -> Message:
        key, through = (row.group, row.peer, op), row.sends_completed if op is Op.SEND else row.recvs_completed
        known = self._known.get(key)
        if known is None or known[0] != through:
            event = pending_message(ring, row, op)
            known = self._known[key] = (through, event.time_ns if event is not None else now_ns)
        kind = WaitKind.SEND if op is Op.SEND else WaitKind.RECV
        return Message(group, row.peer, kind, age_s(now_ns, known[1]))
