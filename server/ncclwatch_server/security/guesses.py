"""Counts wrong tokens by address, and says how long an answer there has to wait. Pure: time is passed in.

A holder is never locked out: whoever has shown a good token from an address before passes there at once, however many
wrong ones come from it, as where a fleet and a guesser share one address. A good token that is new there waits as
long as a wrong one, or how soon the answer comes would say which it was.
"""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

FREE = 20  # wrong tokens of one address in a row that are answered at once: somebody mistypes
FORGOTTEN_S = 60.0  # after the last wrong one
WAIT_S = (0.125, 2.0)  # first and longest; an agent waits 3 s for its welcome
# Answers that wait at one address; then nothing more is looked at there. With the longest wait that is 8 a second.
WAITING_MAX = 16
WAITING_ALL_MAX = 512
ADDRESSES_MAX = 4096
HOLDERS_MAX = 16_384


@dataclass(slots=True, kw_only=True)
class _Tries:
    wrong: int = 0
    untold: int = 0
    last_at: float = 0.0
    waiting: int = 0


class Guesses:
    """The wrong tokens of each address."""

    def __init__(self) -> None:
        self._tries: OrderedDict[str, _Tries] = OrderedDict()
        self._holders: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._waiting = 0

    def wrong(self, address: str, now: float) -> None:
        """Note a wrong token."""
        tries = self._of(address, now)
        tries.wrong += 1
        tries.untold += 1
        tries.last_at = now

    def good(self, address: str, digest: bytes) -> None:
        """Note a good one."""
        self._holders[place(address), digest] = None
        self._holders.move_to_end((place(address), digest))
        if len(self._holders) > HOLDERS_MAX:
            self._holders.popitem(last=False)

    def wait_s(self, address: str, digest: bytes, now: float) -> float:
        """Return how long the answer to a token has to wait; below 0: it is not looked at."""
        if (place(address), digest) in self._holders:
            return 0.0
        tries = self._of(address, now)
        if tries.wrong <= FREE:
            return 0.0
        if tries.waiting >= WAITING_MAX or self._waiting >= WAITING_ALL_MAX:
            return -1.0
        first, longest = WAIT_S
        return min(longest, first * 2.0 ** min(tries.wrong - FREE - 1, 20))

    def waits(self, address: str, change: int) -> None:
        """Note that an answer begins to wait, or has waited."""
        tries = self._tries.get(place(address))
        if tries is not None:
            tries.waiting = max(0, tries.waiting + change)
        self._waiting = max(0, self._waiting + change)

    def untold(self) -> dict[str, int]:
        """Return how many wrong tokens came from where since this was last asked."""
        found = {address: tries.untold for address, tries in self._tries.items() if tries.untold}
        for address in found:
            self._tries[address].untold = 0
        return found

    def _of(self, address: str, now: float) -> _Tries:
        key = place(address)
        tries = self._tries.get(key)
        if tries is None or (now - tries.last_at > FORGOTTEN_S and not tries.waiting and not tries.untold):
            tries = self._tries[key] = _Tries(last_at=now)
            while len(self._tries) > ADDRESSES_MAX:
                self._tries.popitem(last=False)
        self._tries.move_to_end(key)
        return tries


def place(address: str) -> str:
    """Return what counts as one address: all of loopback, and of IPv6 the 64 bits that one machine may have."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    # A program may connect from any address of 127.0.0.0/8.
    return "127.0.0.1" if found.is_loopback else str(found)
