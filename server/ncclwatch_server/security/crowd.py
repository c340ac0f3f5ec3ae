"""Counts connections, and keeps apart those that have shown who they are from those that have not yet.

There is room for few of the latter. When it is full, the oldest of the address that has most of them goes: whoever has
something to show does so within milliseconds, and is not the oldest. A connection is counted from when the kernel hands
it over, which is before any TLS. Some places are kept for readers: agents never take all.
"""

import logging
import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum

from ncclwatch_server import limits
from ncclwatch_server.security.guesses import place

SEAT = "seat_of_this_connection"  # name of the `Seat` in the state of a request

log = logging.getLogger("ncclwatch.server")

_TOLD_EVERY_S = 60.0


class Dropped(str, Enum):
    """Why a connection was not kept."""

    FULL = "full"  # there are as many as there may be, and all have shown who they are
    NEWCOMERS = "newcomers"  # too many had not
    ACCEPT = "accept"  # the kernel had none to give: no descriptors, no memory


class Seat:
    """The place of one connection."""

    __slots__ = ("_crowd", "address", "hang_up", "known", "taken")

    def __init__(self, crowd: "Crowd", address: str) -> None:
        self._crowd = crowd
        self.address = address
        self.known = False
        self.taken = True
        self.hang_up: Callable[[], object] = bool  # what ends the connection, as far as it has come

    def show(self) -> None:
        """Note that it has shown who it is."""
        if not self.known and self.taken:
            self.known = True
            self._crowd.forget_newcomer(self)

    def leave(self) -> None:
        """Note that the connection is no more."""
        if self.taken:
            self.taken = False
            self._crowd.left(self)


class Crowd:
    """All connections of this server."""

    def __init__(
        self, connections_max: int, *, many_from: Iterable[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.connections_max = connections_max
        self.agents_max = max(1, min(limits.AGENTS_MAX, connections_max - limits.READERS_KEPT))
        self.newcomers_max = max(4, min(limits.NEWCOMERS_MAX, connections_max // 4))
        self.newcomers_per_address_max = max(2, self.newcomers_max // 2)
        self.connections = 0
        self.newcomers = 0
        self.dropped: Counter[Dropped] = Counter()
        self._many_from = frozenset(many_from)  # proxies: one address, many people
        self._clock = clock
        self._new: dict[str, dict[Seat, None]] = {}  # by address, the oldest first
        self._told_at = dict.fromkeys(Dropped, -math.inf)

    def admit(self, address: str) -> Seat | None:
        """Return a seat for a new connection, None if there is none."""
        address = place(address)
        mine = self._new.get(address, {})
        if len(mine) >= self.newcomers_per_address_max and address not in self._many_from:
            self._drop(next(iter(mine)))
        elif self.newcomers and (self.newcomers >= self.newcomers_max or self.connections >= self.connections_max):
            greediest = max(self._new, key=lambda each: len(self._new[each]))
            self._drop(next(iter(self._new[greediest])))
        if self.connections >= self.connections_max:
            self.note_dropped(Dropped.FULL, f"there are {self.connections} connections, as many as there may be")
            return None
        seat = Seat(self, address)
        self.connections += 1
        self.newcomers += 1
        self._new.setdefault(address, {})[seat] = None
        return seat

    def forget_newcomer(self, seat: Seat) -> None:
        """Count a connection no longer among those that have shown nothing."""
        mine = self._new.get(seat.address)
        if mine is not None and mine.pop(seat, self) is None:
            self.newcomers -= 1
            if not mine:
                del self._new[seat.address]

    def left(self, seat: Seat) -> None:
        """Count a connection no longer."""
        self.connections -= 1
        self.forget_newcomer(seat)

    def note_dropped(self, why: Dropped, words: str) -> None:
        """Count a connection that was not kept; the log says it once a minute."""
        self.dropped[why] += 1
        now = self._clock()
        if now - self._told_at[why] >= _TOLD_EVERY_S:
            self._told_at[why] = now
            log.warning("dropped a connection: %s; %d so far for this reason", words, self.dropped[why])

    def _drop(self, seat: Seat) -> None:
        words = f"{self.newcomers} connections have not shown who they are, and the oldest of {seat.address} goes"
        self.note_dropped(Dropped.NEWCOMERS, words)
        seat.leave()
        seat.hang_up()


def raise_limit() -> int:
    """Raise the number of descriptors this process may have to what it can use. Returns it."""
    wanted = limits.CONNECTIONS_MAX + limits.DESCRIPTORS_KEPT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    able = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= able:
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (able, hard))
    return able


def room(descriptors: int) -> int:
    """Return how many connections there may be with so many descriptors: the store and alerts need some."""
    return max(8, min(limits.CONNECTIONS_MAX, descriptors - limits.DESCRIPTORS_KEPT))
