"""Chooses which of several servers an agent dials: those that the user named, and the one that they say leads."""

from urllib.parse import urlsplit

from ncclwatch.contract import config
from ncclwatch.contract.network import tls

LEADER_CHARS_MAX = 300


class Addresses:
    """The servers of one uplink. `current` is dialled; `next` follows a failure, and `reached` ends a search."""

    def __init__(self, named: str) -> None:
        """`named`: as in NCCLWATCH_SERVER; "" for a server that nobody named, which is the only one."""
        self._named = config.addresses(named) if named else []
        self._leader = ""  # that some server has named, and no user
        self._tried: set[str] = set()
        self.current = self._named[0] if named else ""
        self.rounds = 0  # in a row, through all of them

    @property
    def several(self) -> bool:
        """Whether there is another one to dial."""
        return len(self._named) > 1 or bool(self._leader)

    def next(self, leader: str = "") -> bool:
        """Choose the server to dial after a failure. Returns whether all have been tried, and it is time to wait.

        `leader` is what the last one said about who leads. The token was shown to that one already; what it names gets
        it only over TLS if that is how it was shown.
        """
        self._tried.add(self.current)
        if leader and _is_as_safe(leader, self.current):
            if leader not in self._named:
                self._leader = leader
            if leader not in self._tried:
                self.current = leader
                return False
        known = [*self._named, self._leader] if self._leader else self._named
        self.current = next((each for each in known if each not in self._tried), "")
        if self.current:
            return False
        self._tried.clear()
        self.rounds += 1
        self.current = known[0]
        return True

    def reached(self) -> None:
        """Note that the current one listens."""
        self._tried.clear()
        self.rounds = 0


def usable(leader: str) -> str:
    """Return an address that a server named as its leader's, "" if it is none."""
    try:
        parts = urlsplit(leader)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/")
    except ValueError:
        return ""
    return config.without_credentials(leader).rstrip("/") if good and len(leader) <= LEADER_CHARS_MAX else ""


def _is_as_safe(leader: str, current: str) -> bool:
    return tls.is_secure(leader) or not tls.is_secure(current)
