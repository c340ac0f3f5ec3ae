"""Writes what the agent does to a bounded file beside the rings, or nowhere if that cannot be written."""

import logging
import os
import sys

from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.contract.words.console import complain
from ncclwatch.contract.words.log_lines import OneLine

LOG_BYTES_MAX = 1024 * 1024
LOG_NAME = "agent.log"

log = logging.getLogger("ncclwatch.agent")


class BoundedFile(logging.Handler):
    """Appends to a file in a private directory, and begins a new one beside the old one when it is full."""

    def __init__(self, place: PrivateDir, name: str, bytes_max: int = LOG_BYTES_MAX) -> None:
        """Open it. Raises OSError."""
        super().__init__()
        self._place, self._name, self._bytes_max = place, name, bytes_max
        self._fd = self._open()

    def _open(self) -> int:
        return self._place.open(self._name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record. A disk that is full costs the line."""
        try:
            line = self.format(record).encode("utf-8", "replace") + b"\n"
            if os.fstat(self._fd).st_size + len(line) > self._bytes_max:
                self._place.rename(self._name, f"{self._name}.1")
                os.close(self._fd)
                self._fd = self._open()
            os.write(self._fd, line)
        except OSError:
            self.handleError(record)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()


def open_log(place: PrivateDir, *, terminal: bool) -> None:
    """Send what is logged to agent.log, and to standard error where somebody watches.

    A directory that is read-only or full costs the log, never the agent.
    """
    logging.raiseExceptions = False  # a full disk must not print a traceback for each line
    log.setLevel(logging.INFO)
    log.propagate = False
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)] if terminal else []
    try:
        handlers.append(BoundedFile(place, LOG_NAME))
    except OSError as error:
        if terminal:
            complain(f"no log: {error}", "ncclwatch-agent")
    for handler in handlers or [logging.NullHandler()]:
        handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
