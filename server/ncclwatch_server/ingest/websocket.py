"""Turns bytes from one agent into messages, and messages into bytes: one WebSocket, without a task or queue of its own.

uvicorn gives each WebSocket a task, a queue and the whole stack of an application, which costs 36 kB and, at one digest
a second from each of thousands of nodes, most of the time: what a digest touches has left the cache since the one
before. Here a message goes from the socket to whoever takes it in one call. The handshake, pings, fragments, closing
and all that is odd are the business of `websockets`, which is fed whole frames; only a message that is one frame goes
past it.

Until the host admits it a line costs kilobytes, and one that was refused keeps nothing of what still comes. Whatever a
line keeps counts in a budget that all lines share.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

from starlette.datastructures import Headers
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Protocol as Wire
from websockets.protocol import Side, State
from websockets.server import ServerProtocol

from ncclwatch.contract import config
from ncclwatch_server import limits
from ncclwatch_server.ingest.contact import LineContact
from ncclwatch_server.ingest.conversation import Host, Talk
from ncclwatch_server.ingest.turns import used_since
from ncclwatch_server.security.crowd import SEAT, Seat

try:
    from websockets.speedups import apply_mask
except ImportError:  # its C was not built for this platform
    from websockets.utils import apply_mask

HOST = "host_of_agents"  # name of the `Host` in the state of the application's lifespan
REMOTE_HOST = "host_of_agents_of_other_nodes"  # the same of connections to the socket for them

# The library tells of each connection at level INFO.
_log = logging.getLogger("ncclwatch.server.line")
_log.setLevel(logging.WARNING)

_WHOLE_TEXT, _WHOLE_BINARY = _WHOLE = 0x81, 0x82  # the first byte of a message that is one frame
_CONTROL, _OPCODE = 0x08, 0x0F  # parts of the first byte of any frame
_MASKED, _LENGTH = 0x80, 0x7F  # parts of the second
_HEAD_BYTES_MAX = 14  # of a frame
_SHORT = 126  # a length from here on follows in 2 bytes, the next one in 8
_MASK_BYTES = 4
_GOING_AWAY = 1012  # the server restarts, as far as it knows
_CLOSE_S = 1.0  # in which the other side must agree to close
_CONTROL_BYTES_MAX = 125  # RFC 6455, section 5.5: of the payload of a ping, pong or close
_PEEK_BYTES = 32  # of a long message, which tell its kind
_UNSENT_MAX = 64 * 1024  # bytes: then pings wait, and the newest is answered when the agent reads again (5.5.3)
_ODD_MAX, _ODD_S = 1000, 10.0  # pings, pongs and fragments, each of which costs as much as a digest
_COPIED_MAX = 64 * 1024
# Taken from a line after its last words, and thrown away: an end with bytes unread is a reset, which may take these.
_DRAINED_MAX = 256 * 1024


class AgentLine(asyncio.Protocol):
    """A connection that was an HTTP request until now: what uvicorn takes as its option `ws`."""

    __slots__ = (
        "_closes", "_connections", "_drained", "_fragments", "_host", "_noted", "_odd", "_odd_at", "_owed",
        "_plain", "_rest", "_seat", "_skip", "_stopped", "_talk", "_transport", "_turn", "_turn_began",
        "_turn_ended", "_unread", "_used_s", "_wanted", "_wire", "blocked", "contact", "heard",
    )  # fmt: skip

    def __init__(self, config: Config, server_state: ServerState, app_state: Mapping[str, Any]) -> None:
        self._host = cast("Host[AgentLine]", app_state[HOST])
        self._connections: set[Any] = server_state.connections
        self._seat = cast("Seat | None", app_state.get(SEAT))
        self._wire = Wire(Side.SERVER, state=State.CONNECTING, logger=_log)
        self._talk: Talk | None = None
        self._rest = bytearray()  # of a frame that is not complete
        self._wanted = 0  # bytes of it until it is worth another look
        self._fragments: tuple[bool, bytearray] | None = None  # of a message: whether it is text, what came of it
        self._plain = limits.HELLO_BYTES_MAX  # a message up to here needs no leave
        self._unread = 0  # bytes that were handed on and wait to be read
        self._noted = 0  # in the budget of all lines
        self._owed: tuple[bytes, bytes] | None = None  # mask and payload of the newest ping that was not answered
        self._odd, self._odd_at = 0, -_ODD_S  # frames that are no whole messages, and when there were many of them
        self._skip = 0  # bytes of a frame that is not wanted any more
        self._drained = 0
        self._closes: asyncio.TimerHandle | None = None
        self._stopped = False  # whoever talks on it takes nothing for now
        self._turn: asyncio.TimerHandle | None = None  # when the next one begins, after a long one
        self._turn_began = 0.0  # CPU time of the event loop's thread
        self._turn_ended = 0.0  # on the clock
        self._used_s = 0.0  # of that CPU time, beyond its share
        self.blocked = False  # the agent does not read: what is written now waits in memory
        self.heard = True  # anything at all, since somebody put this to False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection over."""
        self._transport = cast(asyncio.Transport, transport)
        self.contact = LineContact(transport.get_extra_info("socket"), self.ping)
        self._connections.add(self)
        if self._seat is not None:
            self._seat.hang_up = self._transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.contact.end(exc)
        self._connections.discard(self)
        if self._seat is not None:
            self._seat.leave()
        if self._closes is not None:
            self._closes.cancel()
        if self._turn is not None:
            self._turn.cancel()
            self._host.turns.over()
        self._rest.clear()
        self.blocked = False
        self._end()

    def pause_writing(self) -> None:
        """Note that the agent does not keep up."""
        self.blocked = True
        self._account()

    def resume_writing(self) -> None:
        """Note that it does."""
        self.blocked = False
        self._account()
        if self._owed is not None and self._wire.state is State.OPEN:
            (mask, data), self._owed = self._owed, None
            self._wire.send_pong(apply_mask(data, mask))
            self._flush()
        if self._talk is not None:
            self._talk.unblocked()

    def shutdown(self) -> None:
        """Say goodbye, as uvicorn asks of all connections when the server ends."""
        if self._wire.state is State.OPEN:
            self._wire.send_close(_GOING_AWAY)
        self._flush()
        self._close()

    @property
    def peer(self) -> str:
        """The address of the other side, as the kernel says; "" for a socket without one."""
        found = self._transport.get_extra_info("peername")
        return str(found[0]) if isinstance(found, tuple) and found else ""

    @property
    def talks(self) -> bool:
        """Whether what is said on it still counts."""
        return self._talk is not None

    def send(self, data: bytes) -> None:
        """Send a message of JSON. Nothing happens if the line is closing."""
        if self._wire.state is State.OPEN:
            self._wire.send_text(data)
            self._flush()

    def ping(self) -> None:
        """Ask the other side for a sign of life."""
        if self._wire.state is State.OPEN:
            self._wire.send_ping(b"")
            self._flush()

    def dismiss(self, last_words: bytes, code: int) -> None:
        """Say why and close: the talk is over at once, the connection when the other side agrees or its time is up."""
        self._end()
        if self._wire.state is State.OPEN:
            self._wire.send_text(last_words)
            self._wire.send_close(code)
            self._flush()
            self._closes = asyncio.get_running_loop().call_later(_CLOSE_S, self.abort)

    def pause(self) -> None:
        """Take no more bytes for now; what has come already is still handed on."""
        self._stopped = True
        self._read_or_not()

    def resume(self) -> None:
        """Take bytes again."""
        self._stopped = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self._transport.is_closing():
            return
        if self._stopped or self._turn is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def abort(self) -> None:
        """End the connection without a word."""
        self._transport.abort()

    def give_up(self) -> None:
        """End the connection because nothing came any more, and keep what the kernel knows of the other side."""
        self.contact.give_up()
        self.abort()

    def admit(self) -> None:
        """Let longer messages come: whoever is there has said who it is."""
        self._plain = limits.PLAIN_BYTES_MAX
        if self._seat is not None:
            self._seat.show()

    def hold(self, size: int) -> None:
        """Count bytes that were handed on and wait to be read; a negative number when they have been."""
        self._unread += size
        self._account()

    def starve(self, reason: str) -> None:
        """End the talk: it costs too much."""
        if self._talk is not None:
            self._talk.starve(reason)

    def data_received(self, data: bytes) -> None:
        """Take bytes, and hand on each message that is complete."""
        self.heard = True
        if self._wire.state is State.CONNECTING:
            self._shake_hands(data)
            return
        self._turn_began = self._host.turns.used()
        if self._rest and self._talk is not None:
            self._rest += data
            if len(self._rest) < self._wanted:
                self._account()
                return
            data, self._rest = cast(bytes, self._rest), bytearray()  # as good as bytes, and not copied
        self._take_turn(data)

    def _take_turn(self, data: bytes) -> None:
        self._take_frames(data)
        if self._rest or self._noted:
            self._account()
        turns, now = self._host.turns, self._host.turns.clock()
        self._used_s = used_since(self._used_s, now - self._turn_ended) + turns.used() - self._turn_began
        self._turn_ended = now
        if self._used_s > limits.TURN_S and self._turn is None and self._talk is not None:
            self._turn = turns.pause(self._used_s, self._next_turn)
            self._used_s = 0.0
            self._read_or_not()

    def _next_turn(self) -> None:
        self._turn = None
        self._host.turns.over()
        self._turn_began = self._host.turns.used()
        if self._rest and len(self._rest) >= self._wanted:
            data, self._rest = cast(bytes, self._rest), bytearray()
            self._take_turn(data)
        self._read_or_not()

    def _take_frames(self, data: bytes) -> None:
        at, size = 0, len(data)
        while at < size:
            if self._talk is None:
                self._drain(data[at:])
                break
            body, end = _frame(data, at)
            if data[at] & _CONTROL and end - body > _CONTROL_BYTES_MAX:
                self._break_off("control frame too long")  # the library would wait for all of it first
                break
            if end - body > self._plain or self._fragments is not None:
                seen = self._look_into(data, at, body, end)
                if seen != end:
                    self._wait_for(data, at, seen)
                    break
            if end > size:
                self._wait_for(data, at, end)
                break
            first = data[at]
            if first in _WHOLE and self._fragments is None and data[at + 1] & _MASKED:
                # What is long is not copied once more.
                masked = data[body:end] if end - body < _COPIED_MAX else memoryview(data)[body:end]
                self._hand_on(apply_mask(masked, data[body - _MASK_BYTES : body]), text=first == _WHOLE_TEXT)
            else:
                self._feed(data, at, end)
            at = end
            if at < size and self._talk is not None and self._host.turns.used() - self._turn_began > limits.TURN_S:
                self._rest += memoryview(data)[at:]
                self._wanted = 0
                break

    def _look_into(self, data: bytes, at: int, body: int, end: int) -> int:
        """Return up to where a long message, or a part of one, has to be there until it is worth another look."""
        length, masked = end - body, len(data) > at + 1 and data[at + 1] & _MASKED
        if not masked or length > config.MESSAGE_BYTES_MAX or data[at] & _CONTROL:
            return end  # no message, or the library refuses it
        text, parts = self._fragments or (data[at] & _OPCODE == Opcode.TEXT, b"")
        if len(parts) + length <= self._plain:
            return end
        head = bytes(parts[:_PEEK_BYTES])
        if len(head) < _PEEK_BYTES:
            peek = min(end, body + _PEEK_BYTES)
            if len(data) < peek:
                return peek
            head += apply_mask(data[body:peek], data[body - _MASK_BYTES : body])
        assert self._talk is not None
        self._talk.expects(len(parts) + length, head, text=text)
        return end

    def _break_off(self, reason: str) -> None:
        """Close a connection on which a rule of WebSockets was broken."""
        self._wire.fail(CloseCode.PROTOCOL_ERROR, reason)
        self._flush()
        self._end()

    def _wait_for(self, data: bytes, at: int, end: int) -> None:
        """Keep the beginning of a frame until the rest is there. One that is refused anyway is not waited for."""
        if self._talk is None:
            self._drain(data[at:])
        elif end - at > config.MESSAGE_BYTES_MAX + _HEAD_BYTES_MAX or (
            len(data) > at + 1 and not data[at + 1] & _MASKED
        ):
            self._feed(data, at, len(data))
        else:
            self._rest += memoryview(data)[at:]
            self._wanted = end - at

    def _drain(self, data: bytes) -> None:
        """Throw away what comes after the last words, but for the answer to them."""
        self._drained += len(data)
        if self._drained > _DRAINED_MAX or self._transport.is_closing():
            self._rest.clear()
            self.pause()
            return
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        data, self._rest = bytes(self._rest) + bytes(data[skipped:]), bytearray()
        at, size = 0, len(data)
        while at < size:
            body, end = _frame(data, at)
            if body <= size and end - body > _CONTROL_BYTES_MAX:
                self._skip = max(0, end - size)
            elif end > size:
                self._rest += data[at:]
                return
            elif data[at] & _OPCODE == Opcode.CLOSE:
                self._feed(data, at, end)
                return
            at = end

    def _feed(self, data: bytes, at: int, end: int) -> None:
        """Let the library look at whole frames, or at those that it refuses."""
        self._odd += 1
        if self._odd % _ODD_MAX == 0 and self._too_often():
            return
        if data[at] & _OPCODE == Opcode.PING and self._unsent > _UNSENT_MAX:
            body, _ = _frame(data, at)
            self._owed = bytes(data[body - _MASK_BYTES : body]), bytes(data[body:end])
            return
        self._wire.receive_data(bytes(data[at:end]))
        for event in self._wire.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._flush()
        if self._wire.state is not State.OPEN:
            self._end()

    def _too_often(self) -> bool:
        """Say whether so many pings and fragments came so soon that they are meant to cost; then end the talk."""
        now = time.monotonic()
        before, self._odd_at = self._odd_at, now
        if now - before >= _ODD_S or self._talk is None:
            return False
        self._talk.starve(f"{_ODD_MAX} pings or fragments within {_ODD_S:.0f} s are more than any agent sends")
        return True

    def _take(self, frame: Frame) -> None:
        if self._talk is None:
            return  # it is closing
        if frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            self._fragments = frame.opcode is Opcode.TEXT, bytearray()
        elif frame.opcode is not Opcode.CONT or self._fragments is None:
            return
        text, parts = self._fragments
        parts += frame.data
        if frame.fin:
            self._fragments = None
            self._hand_on(bytes(parts), text=text)
        else:
            self._account()

    def _hand_on(self, data: bytes, *, text: bool) -> None:
        if self._talk is not None:  # else it is closing
            self._talk.take(data, text=text)

    def _shake_hands(self, data: bytes) -> None:
        """Answer the request, which uvicorn hands over in one piece."""
        if self._transport.is_closing():
            return
        server = ServerProtocol(logger=_log)
        server.receive_data(data)
        for request in server.events_received():
            assert isinstance(request, Request)
            pairs = request.headers.raw_items()
            # Before websockets 17 other bytes than ASCII came as surrogates.
            headers = Headers(raw=[(n.lower().encode(), v.encode("latin-1", "surrogateescape")) for n, v in pairs])
            status, sentence = self._host.problem(request.path.partition("?")[0], headers)
            response = server.reject(HTTPStatus(status), sentence) if sentence else server.accept(request)
            server.send_response(response)
        self._write(server.data_to_send())
        if server.state is State.OPEN:
            # Without the request and its answer, of which the handshake's object keeps every line.
            self._wire = Wire(Side.SERVER, max_size=config.MESSAGE_BYTES_MAX, logger=_log)
            self._talk = talk = self._host.meet(self, headers)
            talk.begin()

    def _flush(self) -> None:
        self._write(self._wire.data_to_send())

    def _write(self, parts: list[bytes]) -> None:
        for data in parts:
            if data:
                self._transport.write(data)
            else:  # the library's word for the end of what is sent
                self._close()

    def _close(self) -> None:
        """Hang up when all is sent, and soon: whoever does not read would keep the line for ever."""
        self._transport.close()
        if self._closes is None and self._unsent:
            self._closes = asyncio.get_running_loop().call_later(_CLOSE_S, self.abort)

    def _end(self) -> None:
        talk, self._talk = self._talk, None
        self._fragments = None
        at = 0
        while at < len(self._rest):
            body, end = _frame(self._rest, at)
            if end > len(self._rest):
                if body <= len(self._rest):  # else its head comes first
                    self._skip = end - len(self._rest)
                    at = len(self._rest)
                break
            at = end
        del self._rest[:at]
        self._account()
        if talk is not None:
            talk.ended()

    @property
    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    def _account(self) -> None:
        kept = len(self._rest) + self._unread + (self._unsent if self.blocked else 0)
        if self._fragments is not None:
            kept += len(self._fragments[1])
        if kept != self._noted:
            self._noted = kept
            self._host.budget.note(self, kept)


def _frame(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return where the payload of a masked frame begins and where it ends: RFC 6455, section 5.2.

    An end beyond the data says that there has to be more of it, and as much, as far as its head tells.
    """
    if len(data) < at + 2:
        return at, at + 2
    length = data[at + 1] & _LENGTH
    if length < _SHORT:
        body = at + 2 + _MASK_BYTES
        return body, body + length
    middle = at + 2 + (2 if length == _SHORT else 8)
    if len(data) < middle:
        return at, middle
    body = middle + _MASK_BYTES
    return body, body + int.from_bytes(data[at + 2 : middle], "big")
