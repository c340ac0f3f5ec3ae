"""Reads what the agent tells this rank of hangs, as long as it holds.

An agent that tells of a hang does so anew each second. A file that does not change is left over from an agent that is
gone, or the agent itself stands still: nobody knows then whether the hang stands.
"""

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.contract.on_hang import told
from ncclwatch.contract.on_hang.told import Told

BEATS_MIN = 2  # that have to be heard, so that no file of yesterday counts
STALE_S = 5.0  # after the last one


class Hearing:
    """The file beside the ring of this rank. `look` at it with each pulse."""

    def __init__(self, place: PrivateDir, ring: str) -> None:
        self._place = place
        self._name = ring + config.TOLD_SUFFIX
        self._beat = -1
        self._beats = 0
        self._heard_s = 0.0

    def look(self, now_s: float) -> Told | None:
        """Return what the agent tells now, None if it tells of no hang. `now_s`: monotonic."""
        found = None
        if self._place.stat(self._name) is not None:
            found = told.parse(self._place.read(self._name, told.FILE_BYTES_MAX))
        if found is None:
            self._beats, self._beat = 0, -1
            return None
        if found.beat != self._beat:
            self._beat, self._heard_s = found.beat, now_s
            self._beats += 1
        if now_s - self._heard_s > STALE_S:
            self._beats = 0
        return found if self._beats >= BEATS_MIN else None
