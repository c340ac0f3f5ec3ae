"""Bounds how long a connection may keep the server waiting, and how much it may send before it has said what it wants.

uvicorn bounds neither the time nor the length of a request's head, nor how many requests may wait for an answer, nor
the time of a reader that does not read. This bounds all four: who is beyond is cut off, which costs nobody else.
"""

import asyncio
from typing import Any

from starlette.responses import JSONResponse
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ncclwatch.contract import wire
from ncclwatch_server import limits
from ncclwatch_server.ingest.websocket import HOST, REMOTE_HOST
from ncclwatch_server.security.crowd import SEAT, Seat
from ncclwatch_server.security.neighbours import NEIGHBOURS, Refusal, as_upgrade_refused

_HEADER_COSTS = 32  # bytes that a header costs beside its own

_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 35\r\nconnection: close\r\n\r\nThe request's headers are too long."
)


_AGENTS_ONLY = JSONResponse({"detail": f"here agents connect to {wire.AGENT_PATH}, and nothing else is served"}, 404)


class PatientHttp(HttpToolsProtocol):
    """uvicorn's HTTP, with an end to its patience."""

    _head_ends: asyncio.TimerHandle | None = None  # when a head that is not complete by then costs the connection
    _reader_ends: asyncio.TimerHandle | None = None  # the same of a reader that takes nothing
    _in_head = False  # the line and headers of a request are coming
    _head_bytes = 0  # of it, with what came in one packet with it
    _seen_bytes = 0  # of its line and its headers that are complete
    _upgraded = False  # to a WebSocket, which has patience of its own
    _seat: Seat | None = None
    _refusal = ""  # why another user of this machine is told nothing

    @classmethod
    def seated(cls, config: Config, server_state: ServerState, app_state: dict[str, Any], seat: Seat) -> "PatientHttp":
        """Return one for a connection that has a seat."""
        made = cls(config, server_state, {**app_state, SEAT: seat})
        made._seat = seat
        return made

    @classmethod
    def remote(cls, config: Config, server_state: ServerState, app_state: dict[str, Any], seat: Seat) -> "PatientHttp":
        """Return one for a connection to the socket of agents of other nodes."""
        known = {name: value for name, value in app_state.items() if name != NEIGHBOURS}  # their token decides
        made = cls.seated(config, server_state, {**known, HOST: app_state[REMOTE_HOST]}, seat)
        made.app = _AGENTS_ONLY
        return made

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room."""
        super().connection_made(transport)
        if self._seat is not None:
            self._seat.hang_up = transport.abort
            if not self._seat.taken:  # given to another one meanwhile
                transport.abort()
                return
        if len(self.connections) > limits.CONNECTIONS_MAX:
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
        if self._seat is not None:
            self._seat.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes. Those of a head are counted, and those between requests begin one, were they empty lines."""
        super().data_received(data)
        if self._upgraded:
            return
        if self.transport.is_closing():
            self._hang_up()
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > limits.HEAD_BYTES_MAX:
                self.transport.write(_TOO_LONG)
                self.transport.close()
                self._hang_up()
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
        """Note that a head begins. What this raises is answered with 400."""
        if len(self.pipeline) >= limits.PIPELINED_MAX:
            raise ValueError(f"more than {limits.PIPELINED_MAX} requests wait for an answer")
        self._in_head, self._head_bytes, self._seen_bytes = True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that it is complete."""
        self._in_head = False
        self._have_head()
        super().on_headers_complete()

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._count(len(name) + len(value) + _HEADER_COSTS)
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with a request that cannot be read, and close."""
        if self._seen_bytes > limits.HEAD_BYTES_MAX:
            self.transport.write(_TOO_LONG)
            self.transport.close()
        else:
            super().send_400_response(msg)

    def timeout_keep_alive_handler(self) -> None:
        """Let a connection go on which nothing more is asked."""
        super().timeout_keep_alive_handler()
        self._hang_up()

    def pause_writing(self) -> None:
        """Note that the reader does not keep up."""
        super().pause_writing()
        self._forget_reader()
        self._reader_ends = self.loop.call_later(limits.READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that it reads again."""
        self._forget_reader()
        super().resume_writing()

    def _count(self, size: int) -> None:
        self._seen_bytes += size
        if self._seen_bytes > limits.HEAD_BYTES_MAX:
            raise ValueError(f"a head of more than {limits.HEAD_BYTES_MAX} bytes")

    def _hang_up(self) -> None:
        """Let the connection go though its reader has not taken the last words: its descriptor is worth more."""
        if self.transport.get_write_buffer_size():
            self._forget_reader()
            self._reader_ends = self.loop.call_later(limits.LAST_WORDS_S, self.transport.abort)

    def _await_head(self) -> None:
        if self._head_ends is None:
            self._head_ends = self.loop.call_later(limits.HEAD_S, self.transport.abort)

    def _have_head(self) -> None:
        if self._head_ends is not None:
            self._head_ends.cancel()
            self._head_ends = None

    def _forget_reader(self) -> None:
        if self._reader_ends is not None:
            self._reader_ends.cancel()
            self._reader_ends = None
