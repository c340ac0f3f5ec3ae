"""How does the server speak to its own terminal? One line a record, and nothing in it that a terminal obeys.

What agents send gets into lines of the log: host names, reasons, names of files. A terminal must not take any of it
for a command, and a file of lines must not get a second line that nobody wrote.
"""

import logging

from ncclwatch.contract.text import harmless

FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"


class HarmlessFormatter(logging.Formatter):
    """A formatter that shows control characters instead of sending them. Tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return harmless(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of a traceback if there is one."""
        return harmless(super().format(record), keep_lines=True)


def to_stderr() -> None:
    """Let all records go to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(HarmlessFormatter(FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of its own parts
