"""Bounds what the views of ranks of all jobs take in memory together: the job that keeps most lets go of some."""

import weakref
from typing import Protocol

from ncclwatch_server import limits


class Keeper(Protocol):
    """Who keeps views."""

    @property
    def weight(self) -> int:
        """How many bytes they take."""

    def drop(self, weight: int) -> None:
        """Let views of at least so many bytes go."""


class ViewRoom:
    """Who keeps views, and how much they may have together. Whoever is no more is not counted."""

    def __init__(self) -> None:
        self._keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()

    @property
    def kept(self) -> int:
        """How many bytes all views take."""
        return sum(keeper.weight for keeper in self._keepers)

    def note(self, keeper: Keeper) -> None:
        """Note that somebody keeps more than before, and make room if that is too much."""
        self._keepers.add(keeper)
        beyond = self.kept - limits.VIEWS_BYTES_MAX
        while beyond > 0:
            greediest = max(self._keepers, key=lambda each: each.weight)
            before = greediest.weight
            greediest.drop(beyond)
            if greediest.weight >= before:
                return
            beyond -= before - greediest.weight
