"""Sends news of verdicts to whoever listens, as server-sent events, from the newest on.

An event is one incident as the API has it, and what happened to it. The last few hundred are kept: who lost the
line says which one it had last (Last-Event-ID, as browsers do) and gets those that it has missed.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum

import msgspec

from ncclwatch.contract.words.printable import json_bytes
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.incidents.report import report_incident

KEPT_MAX = 256
LISTENERS_MAX = 256
WAITING_MAX = 256  # for one listener; who reads more slowly is let go, and comes back with the last id it had
ALIVE_S = 15.0  # a comment is sent when there was no news for so long, so that proxies keep the line

ALIVE = b":\n\n"  # a comment
MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class What(str, Enum):
    """What happened to an incident."""

    OPENED = "opened"
    CHANGED = "changed"
    ESCALATED = "escalated"
    CLOSED = "closed"
    RECOVERED = "recovered"  # its job was started again, and went on


@dataclass(slots=True, kw_only=True, eq=False)
class News:
    """Something that happened to an incident."""

    number: int  # rises
    what: What
    incident: Incident
    _encoded: bytes = b""

    def encoded(self) -> bytes:
        """Return it as a server-sent event. The first time takes milliseconds where there are stacks: in a thread."""
        if not self._encoded:
            data = json_bytes(msgspec.json.encode(report_incident(self.incident)))
            self._encoded = event(self.what.value, data, self.number)
        return self._encoded


class TooMany(Exception):
    """There are as many listeners as there may be."""


class Announcements:
    """The newest news, and who listens. In the event loop only."""

    def __init__(self) -> None:
        self._number = 0
        self._kept: deque[News] = deque(maxlen=KEPT_MAX)
        self._boxes: set[asyncio.Queue[News | None]] = set()

    @property
    def listeners(self) -> int:
        """How many listen now."""
        return len(self._boxes)

    def tell(self, what: What, incident: Incident) -> None:
        """Tell everybody who listens. Never waits."""
        self._number += 1
        news = News(number=self._number, what=what, incident=incident)
        self._kept.append(news)
        for box in self._boxes:
            if box.full():
                box.get_nowait()
                news_or_end: News | None = None
            else:
                news_or_end = news
            box.put_nowait(news_or_end)

    async def listen(
        self, after: int | None, wanted: Callable[[News], bool] = lambda _: True
    ) -> AsyncIterator[News | None]:
        """Yield news as they come, None when there was none for a while. Raises `TooMany`.

        `after` is the number of the news that was heard last: kept ones that are newer come first.
        """
        if len(self._boxes) >= LISTENERS_MAX:
            raise TooMany
        box: asyncio.Queue[News | None] = asyncio.Queue(WAITING_MAX)
        missed = () if after is None else tuple(news for news in self._kept if news.number > after)
        self._boxes.add(box)
        try:
            for news in filter(wanted, missed):
                yield news
            while True:
                try:
                    heard = await asyncio.wait_for(box.get(), ALIVE_S)
                except asyncio.TimeoutError:
                    yield None
                    continue
                if heard is None:
                    return  # it reads more slowly than news come
                if wanted(heard):
                    yield heard
        finally:
            self._boxes.discard(box)


def event(name: str, data: bytes, number: int | None = None) -> bytes:
    """Return one server-sent event. `data` has no newline."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
