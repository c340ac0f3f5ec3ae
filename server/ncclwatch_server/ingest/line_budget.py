"""Bounds what all lines of agents together keep in memory, and lets the greediest one go when that is used up.

A line keeps frames that are not complete, messages that wait to be read, and answers that its agent does not take. Each
has a limit of its own; this is the one for all of them.
"""

from typing import Protocol

from ncclwatch_server import limits


class Keeper(Protocol):
    """A line that keeps something."""

    def starve(self, reason: str) -> None:
        """End the talk, and let go of everything that is kept."""


class LineBudget:
    """How many bytes each line keeps. Lines that keep none are not known here."""

    def __init__(self, bytes_max: int = limits.LINES_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.kept = 0
        self._by_line: dict[Keeper, int] = {}

    def note(self, line: Keeper, kept: int) -> None:
        """Note what a line keeps now."""
        before = self._by_line.pop(line, 0)
        self.kept += kept - before
        if kept:
            self._by_line[line] = kept
        if kept > before and self.kept > self.bytes_max:
            self._relieve()

    def _relieve(self) -> None:
        """Let the greediest go. What is being read in a thread is free only when it has been read."""
        for line, kept in sorted(self._by_line.items(), key=lambda item: -item[1]):
            if self.kept <= self.bytes_max:
                return
            line.starve(
                f"this server keeps at most {_mb(self.bytes_max)} for all agents together, and {_mb(kept)} of it were "
                "yours, more than of any other"
            )


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
