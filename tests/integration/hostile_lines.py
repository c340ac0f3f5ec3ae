"""What a holder of a token may do who is no agent: frames as fast as they go, and how the server feels then."""

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import psutil
from websockets.sync.client import ClientConnection, connect

from ncclwatch.contract import wire
from tests.integration.fake_agent import hello, reply
from tests.integration.server_process import ServerProcess

MIB = 1024 * 1024
READER = "reader-0123456789abcdef"
TEAM_A, TEAM_B = "team-a-0123456789abcdef", "team-b-0123456789abcdef"
BOUND = {"NCCLWATCH_AGENT_TOKEN": f"{TEAM_A} name=team-a namespace=team-a\n{TEAM_B} name=team-b namespace=team-b"}


def admitted(server: ServerProcess, token: str, name: str, host: str = "node-b", machine: str = "") -> ClientConnection:
    """Return the line of an agent that was let in."""
    address = server.url.replace("http", "ws", 1) + wire.AGENT_PATH
    headers = {"Authorization": f"Bearer {token}"}
    line = connect(address, additional_headers=headers, proxy=None, ping_interval=None, close_timeout=1).__enter__()
    hello(line, agent=name, host=host, machine=machine)
    assert isinstance(reply(line), wire.Welcome)
    return line


def announce(job: str, index: int = 0, **changes: object) -> str:
    """Return an announcement."""
    values: dict[str, object] = {"instance": "i", "attempt": 0, "world_size": 2, "ranks": (0, 1), "terminal": False}
    return wire.encode(wire.Announce(index=index, job=job, **{**values, **changes})).decode()  # type: ignore[arg-type]


def frame(data: bytes, opcode: int = 1) -> bytes:
    """Return one masked frame; its mask is 0."""
    size = len(data)
    length = (
        bytes([0x80 | size])
        if size < 126
        else b"\xfe" + size.to_bytes(2, "big")
        if size < 65536
        else b"\xff" + size.to_bytes(8, "big")
    )
    return bytes([0x80 | opcode]) + length + b"\0\0\0\0" + data


def memory(server: ServerProcess) -> float:
    """Return how many MiB of memory a server has."""
    return psutil.Process(server.process.pid).memory_info().rss / MIB


@contextmanager
def flood(lines: Iterable[ClientConnection], data: bytes) -> Iterator[None]:
    """Send the same bytes again and again on each of some lines meanwhile."""
    stop = threading.Event()

    def send(line: ClientConnection) -> None:
        with suppress(OSError):
            while not stop.is_set():
                with line.protocol_mutex:  # else an answer to a ping may come into the middle of a frame
                    line.socket.sendall(data)

    lines = list(lines)
    threads = [threading.Thread(target=send, args=(line,), daemon=True) for line in lines]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for line in lines:
            with suppress(OSError):
                line.socket.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)


def healthz(server: ServerProcess, timeout_s: float = 30.0) -> tuple[float, int]:
    """Ask over a new connection. Returns after how many seconds the answer came, and its status; 0: none did."""
    began = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s) as line:
            line.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            head = line.recv(4096)
        return time.monotonic() - began, int(head.split()[1])
    except (OSError, IndexError):
        return time.monotonic() - began, 0
