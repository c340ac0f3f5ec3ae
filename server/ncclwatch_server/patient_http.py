"""How long may a connection keep the server waiting, and how much may it send before it has said what it wants?

uvicorn bounds neither the time nor the length of a request's head, nor the time of a reader that does not read.
This bounds all three, and the number of connections: who is beyond is cut off, which costs nobody else anything.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ncclwatch_server import settings
from ncclwatch_server.neighbours import NEIGHBOURS, Refusal, as_upgrade_refused

_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 35\r\nconnection: close\r\n\r\nThe request's headers are too long."
)


class PatientHttp(HttpToolsProtocol):
    """uvicorn's HTTP, with an end to its patience."""

    _head_ends: asyncio.TimerHandle | None = None  # when a head that is not complete by then costs the connection
    _reader_ends: asyncio.TimerHandle | None = None  # the same of a reader that takes nothing
    _in_head = False  # the line and headers of a request are coming
    _head_bytes = 0  # of it, beyond those of its first packet
    _upgraded = False  # to a WebSocket, which has patience of its own
    _refusal = ""  # why another user of this machine is told nothing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room."""
        super().connection_made(transport)
        if len(self.connections) > settings.CONNECTIONS_MAX:
            transport.abort()
            return
        self._await_head()
        neighbours = self.app_state.get(NEIGHBOURS)
        self._refusal = neighbours.refusal(transport) if neighbours is not None else ""
        if self._refusal:
            self.app = Refusal(self.app, self._refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._have_head()
        self._forget_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes. Those of a head are counted, and those between requests begin one, were they empty lines."""
        was_in_head = self._in_head
        super().data_received(data)
        if self._upgraded or self.transport.is_closing():
            return
        if was_in_head and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > settings.HEAD_BYTES_MAX:
                self.transport.write(_TOO_LONG)
                self.transport.close()
                return
        idle = self.cycle is None or self.cycle.response_complete
        if self._in_head or (idle and self.timeout_keep_alive_task is None):
            self._await_head()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over."""
        self._upgraded = True
        self._have_head()
        if self._refusal:
            self.transport.write(as_upgrade_refused(self._refusal))
            self.transport.close()
            return
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that it is complete."""
        self._in_head = False
        self._have_head()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Note that the reader does not keep up."""
        super().pause_writing()
        self._forget_reader()
        self._reader_ends = self.loop.call_later(settings.READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that it reads again."""
        self._forget_reader()
        super().resume_writing()

    def _await_head(self) -> None:
        if self._head_ends is None:
            self._head_ends = self.loop.call_later(settings.HEAD_S, self.transport.abort)

    def _have_head(self) -> None:
        if self._head_ends is not None:
            self._head_ends.cancel()
            self._head_ends = None

    def _forget_reader(self) -> None:
        if self._reader_ends is not None:
            self._reader_ends.cancel()
            self._reader_ends = None
