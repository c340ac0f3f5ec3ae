"""Keeps when each connection was last heard, in an array: of 12,000 agents none is looked at one by one."""

import numpy as np


class Listening:
    """The moments at which connections last said something, on the server's clock."""

    def __init__(self) -> None:
        self._at = np.full(16, np.inf)
        self._place: dict[int, int] = {}
        self._number: dict[int, int] = {}
        self._free: list[int] = []

    def note(self, number: int, now: float) -> None:
        """Note that a connection has just spoken."""
        place = self._place.get(number)
        if place is None:
            place = self._make_room()
            self._place[number], self._number[place] = place, number
        self._at[place] = now

    def at(self, number: int) -> float:
        """Return when a connection was heard last. Raises `KeyError` if it never was."""
        return float(self._at[self._place[number]])

    @property
    def quietest(self) -> float:
        """Return when the connection that has been quiet for longest was heard; infinity: there is none."""
        return float(self._at.min())

    def quiet_since(self, moment: float) -> list[int]:
        """Return the connections that have said nothing after a moment."""
        quiet = self._at <= moment
        return [self._number[place] for place in np.flatnonzero(quiet).tolist()] if quiet.any() else []

    def copied(self) -> tuple[dict[int, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"]:
        """Return the place of each connection, and the moments by place."""
        return dict(self._place), self._at.copy()

    def forget(self, number: int) -> None:
        """Forget a connection."""
        place = self._place.pop(number)
        del self._number[place]
        self._at[place] = np.inf
        self._free.append(place)

    def _make_room(self) -> int:
        if self._free:
            return self._free.pop()
        place = len(self._place)
        if place == len(self._at):
            self._at = np.concatenate([self._at, np.full(len(self._at), np.inf)])
        return place
