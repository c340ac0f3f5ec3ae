"""Reads the notice that the agent writes for this rank, as long as it is fresh.

The agent rewrites it each second. A file that does not change was left by an agent that is gone or stalled, and says
nothing about now.
"""

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.contract.on_hang import notice
from ncclwatch.contract.on_hang.notice import Notice

BEATS_MIN = 2  # changes to see before a file counts: it may be a leftover
STALE_S = 5.0  # after the last change


class NoticeFile:
    """The file beside the ring of this rank. Call `read` with each pulse."""

    def __init__(self, place: PrivateDir, ring: str) -> None:
        self._place = place
        self._name = ring + config.NOTICE_SUFFIX
        self._beat = -1
        self._beats = 0
        self._changed_s = 0.0

    def read(self, now_s: float) -> Notice | None:
        """Return the notice, None if there is none or it is stale. `now_s`: monotonic."""
        found = None
        if self._place.stat(self._name) is not None:
            found = notice.parse(self._place.read(self._name, notice.FILE_BYTES_MAX))
        if found is None:
            self._beats, self._beat = 0, -1
            return None
        if found.beat != self._beat:
            self._beat, self._changed_s = found.beat, now_s
            self._beats += 1
        if now_s - self._changed_s > STALE_S:
            self._beats = 0
        return found if self._beats >= BEATS_MIN else None
