"""Writes lines that strangers can cause to the log: so many a minute, then how many there were."""

import logging
import time
from collections.abc import Callable

LINES_MAX, EVERY_S = 20, 60.0


class SparingLog:
    """Passes on the first lines of each minute."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._began_at = clock()
        self._lines = 0

    def warning(self, text: str, *values: object) -> None:
        """Write a line, or count it."""
        now = self._clock()
        if now - self._began_at >= EVERY_S:
            if self._lines > LINES_MAX:
                self._log.warning("%d more lines like the last one were left out", self._lines - LINES_MAX)
            self._began_at, self._lines = now, 0
        self._lines += 1
        if self._lines <= LINES_MAX:
            self._log.warning(text, *values)
