"""Chooses which of several servers an agent dials next. It dials none but those that the user has named."""

from ncclwatch.contract import config


class Addresses:
    """The servers of one uplink. `current` is dialled; `next` follows a failure, and `reached` ends a search."""

    def __init__(self, named: str) -> None:
        """`named`: as in NCCLWATCH_SERVER; "" for a server that nobody named, which is the only one."""
        self.named = tuple(config.addresses(named)) if named else ()
        self.current = self.named[0] if named else ""
        self.rounds = 0  # in a row, through all of them
        self.elected = len(self.named) > 1  # another one takes over where one fails
        self._tried: set[str] = set()

    def next(self, leader: str = "") -> bool:
        """Choose the server to dial after a failure. Returns whether all have been tried, and it is time to wait.

        `leader` is what the last one said about who leads. One that nobody has named is not dialled: it would be shown
        the token. Behind one address may be several servers, too: it is dialled again.
        """
        self.elected = self.elected or bool(leader)
        self._tried.add(self.current)
        if leader in self.named and leader not in self._tried:
            self.current = leader
            return False
        untried = [each for each in self.named if each not in self._tried]
        if untried:
            self.current = untried[0]
            return False
        self._tried.clear()
        self.rounds += 1
        self.current = self.named[0]
        return True

    def reached(self) -> None:
        """Note that the current one listens."""
        self._tried.clear()
        self.rounds = 0
