"""Lets the server speak to its own terminal: one line a record, and nothing in it that a terminal obeys.

What agents send gets into lines of the log: host names, reasons, names of files. A terminal must not take any of it
for a command, and a file of lines must not get a second line that nobody wrote. Nor may anybody fill a disk with them:
of one kind so many are written in a minute, and then how many were left out.
"""

import logging
import time
from collections.abc import Callable

from ncclwatch.contract.words.log_lines import OneLine

_MINUTE_S = 60.0
_KINDS_MAX = 1000
FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"


class Seldom(logging.Filter):
    """Lets so many records of one kind pass in a minute, and the first of the next minute tell how many did not."""

    def __init__(self, most: int = 100, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        self._seen: dict[
            str, tuple[float, int]
        ] = {}  # by the text before anything is put into it: since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a record is written: what operators do always is."""
        if record.name == "ncclwatch.audit":
            return True
        now, kind = self._clock(), str(record.msg)[:200]
        since, count = self._seen.get(kind, (now, 0))
        if now - since >= _MINUTE_S:
            if count > self._most:
                record.msg = f"{record.msg} (and {count - self._most} more like it that were not written)"
            since, count = now, 0
        if kind not in self._seen and len(self._seen) >= _KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = since, count + 1
        return count < self._most


def to_stderr() -> None:
    """Let all records go to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine(FORMAT))
    handler.addFilter(Seldom())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of its own parts
