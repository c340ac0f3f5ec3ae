"""A TCP proxy between agents and a server that can lose, double, swap and cut the frames of their WebSocket.

Agents use no compression (`uplink.connection`), so that a frame of the server's can be read as it is.
"""

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from types import TracebackType

STACKS = b'"kind":"stacks"'  # of a command to an agent, see `contract.wire`
_DATA = (1, 2)  # opcodes of text and binary frames (RFC 6455, 5.2)
SPARED = 1  # frames of each direction of a connection that are left whole: hello and welcome


class Mischief:
    """What is done to one in so many frames, and how often it was done."""

    def __init__(self, kind: str, one_in: int, seed: int) -> None:
        self.kind, self.one_in = kind, one_in
        self.random = random.Random(seed)
        self.done = 0

    def strikes(self) -> bool:
        """Whether the next frame is to suffer."""
        struck = self.random.randrange(self.one_in) == 0
        self.done += struck
        return struck


class Proxy:
    """Listens on a port of its own while the context lasts, and passes on to the server's."""

    def __init__(self, server_port: int) -> None:
        self._target = ("127.0.0.1", server_port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._over = False
        self.mischief: Mischief | None = None
        self.asked_for_stacks = threading.Event()
        self.connections = 0

    def __enter__(self) -> "Proxy":
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(5)

    def hang_up(self) -> None:
        """End all connections."""
        for pair in self._pairs:
            _hang_up(*pair)

    def _start(self, target, *arguments) -> None:  # type: ignore[no-untyped-def]
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over:
            try:
                agent, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, 30)
            except OSError:
                agent.close()
                continue
            server.settimeout(None)
            self.connections += 1
            self._pairs.append((agent, server))
            self._start(self._pass, agent, server, False)
            self._start(self._pass, server, agent, True)

    def _pass(self, source: socket.socket, sink: socket.socket, of_server: bool) -> None:
        try:
            for part in self._spoiled(_parts(source), of_server):
                sink.sendall(part)
        except (OSError, EOFError):
            pass
        _hang_up(source, sink)

    def _spoiled(self, parts: Iterator[tuple[bytes, int]], of_server: bool) -> Iterator[bytes]:
        held = b""
        data_frames = 0
        for part, opcode in parts:
            if of_server and STACKS in part:
                self.asked_for_stacks.set()
            mischief = self.mischief
            data_frames += opcode in _DATA
            if opcode not in _DATA or data_frames <= SPARED or mischief is None or not mischief.strikes():
                yield part + held
                held = b""
            elif mischief.kind == "cut":
                yield part[: len(part) // 2]
                raise EOFError
            elif mischief.kind == "doubled":
                yield part + part
            elif mischief.kind == "reordered":
                held += part


def _parts(source: socket.socket) -> Iterator[tuple[bytes, int]]:
    """Yield the head of the connection, and then its frames, each with its opcode; -1: no frame."""
    stream = source.makefile("rb")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return
        head += line
    yield head, -1
    while True:
        begin = stream.read(2)
        if len(begin) < 2:
            return
        more = {126: 2, 127: 8}.get(begin[1] & 0x7F, 0)
        extended = stream.read(more)
        size = int.from_bytes(extended, "big") if more else begin[1] & 0x7F
        body = stream.read(size + (4 if begin[1] & 0x80 else 0))
        yield begin + extended + body, begin[0] & 0x0F


def _hang_up(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            each.close()
