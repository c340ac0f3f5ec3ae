"""Tells whether the node at the other end of a line is there, when its agent says nothing: its kernel answers, or not.

An agent that was killed or stopped leaves a kernel behind that acknowledges what is sent, or closes the connection. A
node without power, or without a network, does neither. Linux says so of each connection (TCP_INFO, see tcp(7)).
"""

import socket
import struct
import time
from collections.abc import Callable
from typing import Protocol

from ncclwatch.contract.model.job import Contact

# The head of `struct tcp_info` in <linux/tcp.h>: 8 bytes of flags, then numbers of 32 bits.
_INFO = struct.Struct("=8x24I")
_UNACKED, _LAST_DATA_RECEIVED, _LAST_ACK_RECEIVED = 4, 11, 12  # segments, milliseconds ago, milliseconds ago
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)


class Socket(Protocol):
    """What is wanted of a socket, and asyncio lets have of one."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes:
        """Return an option of the kernel."""


class LineContact:
    """What one connection shows of the node at its other end. Its owner may be gone before it."""

    __slots__ = ("_asked_at", "_clock", "_ended", "_ping", "_sock")

    def __init__(
        self, sock: "Socket | None", ping: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sock = sock
        self._ping = ping
        self._clock = clock
        self._asked_at: float | None = None
        self._ended: tuple[Contact, float] | None = None

    def now(self) -> tuple[Contact, float]:
        """Return what is to be seen of the node, and for how many seconds; and ask it for a sign of life.

        What was asked shows from the next call on.
        """
        now = self._clock()
        if self._ended is not None:
            contact, since = self._ended
            return contact, now - since
        asked_s = now - self._asked_at if self._asked_at is not None else 0.0
        contact = _of_kernel(self._sock, asked_s) if self._asked_at is not None else Contact.UNKNOWN
        if contact is not Contact.MUTE:
            self._asked_at = now
            self._ping()
        return contact, asked_s

    def give_up(self) -> None:
        """Note that this side ends the connection, for nothing came any more."""
        contact, asked_s = self.now()
        self._end(contact, self._clock() - asked_s)

    def end(self, error: Exception | None) -> None:
        """Note that the connection has ended; `error` is the one of asyncio's `connection_lost`."""
        if self._ended is not None:
            return
        now = self._clock()
        if error is None or isinstance(error, ConnectionError):
            self._end(Contact.CLOSED, now)
        else:  # the kernel gave up, or was told that there is no way to that host
            self._end(Contact.MUTE, self._asked_at if self._asked_at is not None else now)

    def _end(self, contact: Contact, since: float) -> None:
        self._ended = contact, since
        self._sock, self._ping = None, _nothing


def _nothing() -> None:
    """Ping nobody: the connection has ended."""


def _of_kernel(sock: "Socket | None", asked_s: float) -> Contact:
    """Return what the kernel knows of the other side, which was sent something so many seconds ago."""
    if sock is None or _TCP_INFO is None:
        return Contact.UNKNOWN
    try:
        found = _INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO.size))
    except (OSError, struct.error):  # no socket of TCP, or an older kernel
        return Contact.UNKNOWN
    answered_s = min(found[_LAST_DATA_RECEIVED], found[_LAST_ACK_RECEIVED]) / 1e3
    return Contact.MUTE if found[_UNACKED] and answered_s >= asked_s else Contact.ACKNOWLEDGES
