"""When was each connection heard last? Kept in an array: of 12,000 agents none is looked at one by one."""

import numpy as np


class Listening:
    """The moments at which connections last said something, on the server's clock."""

    def __init__(self) -> None:
        self._at = np.full(16, np.inf)
        self._place: dict[int, int] = {}
        self._number: dict[int, int] = {}
        self._free: list[int] = []

    def __contains__(self, number: int) -> bool:
        return number in self._place

    def copy(self) -> "Listening":
        """Return the same moments, for somebody in another thread."""
        found = Listening()
        found._at, found._place, found._number = self._at.copy(), dict(self._place), dict(self._number)
        found._free = list(self._free)
        return found

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

    def quiet_since(self, moment: float) -> list[int]:
        """Return the connections that have said nothing after a moment."""
        quiet = self._at <= moment
        return [self._number[place] for place in np.flatnonzero(quiet).tolist()] if quiet.any() else []

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
