"""Formats records of the agent's and the server's log: nothing in them begins a line or is obeyed by a terminal.

What is logged holds names of files and hosts, words of rings and of other servers. One record is one line, whatever
stands in it: control characters are written as \\n or \\x1b, and a traceback has its lines behind a bar.
"""

import logging

from ncclwatch.contract.words.printable import harmless


class OneLine(logging.Formatter):
    """Formats a record as one line that a terminal and a reader of files can rely on."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without a traceback."""
        return harmless(super().formatMessage(record))

    def formatException(self, ei: "logging._SysExcInfoType") -> str:
        """Return a traceback; a line of it cannot be taken for another record."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  | {harmless(line)}" for line in lines)

    def formatStack(self, stack_info: str) -> str:
        """Return a stack, as a traceback."""
        return "\n".join(f"  | {harmless(line)}" for line in stack_info.split("\n"))
