"""Keeps the last views of ranks that have ended, for a server to hear, until their job is gone, within a bound.

A view of a rank that ended cannot be made again. It is sent once; it is sent again on every new
connection, because a restarted server knows nothing.
"""

from dataclasses import replace

from ncclwatch.contract import config, wire
from ncclwatch.contract.model.rank import RankView


class SpooledViews:
    """Last views of ranks, taken together."""

    __slots__ = ("delivered_at", "index", "ranks", "sent", "size", "taken_ns")

    def __init__(self, index: int, ranks: tuple[RankView, ...], taken_ns: int) -> None:
        self.index = index
        self.ranks = ranks
        self.taken_ns = taken_ns
        self.size = len(wire.encode(wire.Views(index=index, ranks=ranks)))
        self.sent = False  # on the present connection
        self.delivered_at = 0.0  # monotonic, when it got through first; 0: it has not

    def message(self, now_ns: int) -> wire.Views:
        """Return the message, with the age that the views have by now."""
        age_s = (now_ns - self.taken_ns) / 1e9
        return wire.Views(index=self.index, ranks=tuple(replace(view, news_age_s=age_s) for view in self.ranks))


class Spool:
    """The last views that one server is to hear, oldest first, within SPOOL_BYTES_MAX."""

    def __init__(self, bytes_max: int = config.SPOOL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._entries: list[SpooledViews] = []
        self.dropped = 0

    def put(self, entry: SpooledViews) -> None:
        """Add views; drop the oldest for them if there is no room, delivered ones first."""
        self._entries.append(entry)
        while sum(kept.size for kept in self._entries) > self._bytes_max and len(self._entries) > 1:
            candidates = self._entries[:-1]
            victim = next((kept for kept in candidates if kept.delivered_at), candidates[0])
            self._entries.remove(victim)
            self.dropped += not victim.delivered_at

    def unsent(self) -> list[SpooledViews]:
        """Return what the present connection has not carried yet."""
        return [entry for entry in self._entries if not entry.sent]

    def undelivered(self, index: int) -> bool:
        """Whether something of a job has never reached a server."""
        return any(entry.index == index and not entry.delivered_at for entry in self._entries)

    def delivered_at(self, index: int) -> float:
        """Return when the newest views of a job got through, on the monotonic clock; 0.0: none has."""
        return max((entry.delivered_at for entry in self._entries if entry.index == index), default=0.0)

    def start_over(self) -> None:
        """Note that the connection broke: the next one begins with everything."""
        for entry in self._entries:
            entry.sent = False

    def forget(self, index: int) -> None:
        """Drop the views of a job that is gone."""
        self._entries = [entry for entry in self._entries if entry.index != index]
