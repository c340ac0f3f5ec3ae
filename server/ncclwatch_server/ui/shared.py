"""Makes a page once, though a hundred people look at it: what was made a moment ago is handed to all."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

FRESH_S = 1.5
TOPICS_MAX = 512
LINES_MAX = 512  # open event streams of pages


class Shared:
    """The newest parts of pages, by topic. In the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made: dict[str, tuple[float, asyncio.Future[bytes]]] = {}

    async def get(self, topic: str, make: Callable[[], Awaitable[dict[str, str]]]) -> bytes:
        """Return the parts of a topic as JSON. They are made if nobody has made them just now."""
        now = self._clock()
        at, making = self._made.get(topic, (float("-inf"), None))
        if making is None or now - at > FRESH_S:
            self._forget(now)
            making = asyncio.ensure_future(_encoded(make))
            self._made[topic] = now, making
        # One reader that hangs up must not take it from the others.
        return await asyncio.shield(making)

    def _forget(self, now: float) -> None:
        if len(self._made) >= TOPICS_MAX:
            self._made = {topic: made for topic, made in self._made.items() if now - made[0] <= FRESH_S}


class Lines:
    """Counts the open event streams."""

    def __init__(self) -> None:
        self.open = 0

    @property
    def full(self) -> bool:
        """Whether no more can be opened."""
        return self.open >= LINES_MAX

    async def counted(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the same events, and count them as a line for as long as somebody reads."""
        self.open += 1
        try:
            async for event in events:
                yield event
        finally:
            self.open -= 1


async def _encoded(make: Callable[[], Awaitable[dict[str, str]]]) -> bytes:
    return msgspec.json.encode(await make())
