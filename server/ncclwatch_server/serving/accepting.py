"""Takes connections from the kernel one by one, so that each has a seat before it can cost anything.

The event loop's own servers take all that come, hand over those of TLS only after the handshake, for which they wait a
minute, and say nothing when descriptors run out.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

from ncclwatch_server import limits
from ncclwatch_server.security.crowd import Crowd, Dropped, Seat

AT_ONCE_MAX = 64  # connections taken before others have their turn
AGAIN_S = 0.5  # after the kernel had none to give

_BROKE = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR})  # of that connection only


class Acceptor:
    """One listening socket; what uvicorn takes as a server."""

    def __init__(
        self,
        listener: socket.socket,
        factory: Callable[[Seat], asyncio.Protocol],
        crowd: Crowd,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._factory = factory
        self._crowd = crowd
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        # A newcomer is heard before as many more have come as would push it out.
        self._at_once = max(1, min(AT_ONCE_MAX, crowd.newcomers_per_address_max // 4))
        self._again: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to take connections."""
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._take)

    def close(self) -> None:
        """Take no more."""
        self._loop.remove_reader(self._listener)
        if self._again is not None:
            self._again.cancel()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for those that are being opened."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _take(self) -> None:
        for _ in range(self._at_once):
            try:
                line, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _BROKE:
                    continue
                self._crowd.note_dropped(Dropped.ACCEPT, f"the kernel gives none ({error.strerror})")
                self._loop.remove_reader(self._listener)
                self._again = self._loop.call_later(AGAIN_S, self.start)
                return
            seat = self._crowd.admit(str(address[0]) if isinstance(address, tuple) else "")
            if seat is None:
                line.close()
                continue
            opening = self._loop.create_task(self._open(line, seat))
            seat.hang_up = opening.cancel
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, line: socket.socket, seat: Seat) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._factory(seat),
                line,
                ssl=self._tls,
                ssl_handshake_timeout=limits.TLS_S if self._tls is not None else None,
            )
        except (OSError, asyncio.TimeoutError):  # it went, or its TLS is none; ssl.SSLError is an OSError
            seat.leave()
        except asyncio.CancelledError:
            seat.leave()
            raise
