"""A server for agents under test: it welcomes them and keeps what they say."""

import asyncio

from websockets.asyncio.server import Server, ServerConnection
from websockets.http11 import Request

from ncclwatch.contract import wire


class Stub:
    """A server that welcomes agents and keeps what they say."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[wire.AgentMessage | bytes] = asyncio.Queue()
        self.sockets: list[ServerConnection] = []
        self.requests: list[Request] = []

    async def welcome(self, connection: ServerConnection) -> None:
        """Talk with one agent."""
        self.sockets.append(connection)
        if connection.request is not None:
            self.requests.append(connection.request)
        async for data in connection:
            message = data if isinstance(data, bytes) else wire.decode_from_agent(data)
            self.heard.put_nowait(message)
            if isinstance(message, wire.Hello):
                await connection.send(wire.encode(wire.Welcome(server="stub", version="0")).decode())

    async def next(self) -> wire.AgentMessage | bytes:
        """Return the next message of any agent."""
        return await asyncio.wait_for(self.heard.get(), 10)


def url_of(server: Server) -> str:
    """Return the URL of a listening server."""
    return f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
