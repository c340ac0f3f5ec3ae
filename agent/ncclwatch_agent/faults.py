"""Tells once of each thing that failed in an unforeseen way, and says which rings are left alone for a while then.

One rank whose ring or process cannot be read by this version must not end the watch over all others: it is dropped,
told of with its traceback, and tried again later, with growing pauses. Meanwhile nothing is said of it.
"""

from ncclwatch_agent.log import log

PAUSES_S = (10.0, 60.0, 600.0)
KNOWN_MAX = 4096


class Faults:
    """What has failed so far."""

    def __init__(self) -> None:
        self.count = 0
        self._told: set[str] = set()
        self._left: dict[str, tuple[int, float]] = {}  # path -> how often it failed, until when it is left alone

    def note(self, what: str, error: Exception) -> None:
        """Tell of a failure, with its traceback the first time."""
        self.count += 1
        key = f"{what} {type(error).__name__}"
        if key in self._told or len(self._told) >= KNOWN_MAX:
            return
        self._told.add(key)
        log.error("%s failed: this is a bug in ncclwatch; everything else goes on", what, exc_info=error)

    def leave(self, path: str, now_s: float) -> None:
        """Leave a ring alone for a while."""
        times = self._left.get(path, (0, 0.0))[0]
        if path not in self._left and len(self._left) >= KNOWN_MAX:
            self._left.pop(next(iter(self._left)))
        self._left[path] = (times + 1, now_s + PAUSES_S[min(times, len(PAUSES_S) - 1)])

    def due(self, now_s: float) -> list[str]:
        """Return the rings that may be tried again now."""
        found = [path for path, (_, until) in self._left.items() if 0 < until <= now_s]
        for path in found:
            self._left[path] = (self._left[path][0], 0.0)
        return found
