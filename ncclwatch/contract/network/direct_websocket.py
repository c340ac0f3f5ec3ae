"""Keeps websockets from following an answer that names another address: it would say hello to whoever is there."""

from websockets.asyncio.client import connect


class DirectWebSocket(connect):
    """A connection with which such an answer is `InvalidStatus`."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Follow nothing."""
        return exc
