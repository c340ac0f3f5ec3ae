"""What others can make the server keep in memory, on a real process: kilobytes until they have said who they are.

Raw sockets, for a client library reads what it is sent, and stops sending when it is refused.
"""

import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ncclwatch.contract import config, wire
from ncclwatch.contract.model.rank import StackDump, StackFrame
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration

TOKEN = "Qm7wYx2LkT9sVb4NcR6hJd"
MIB = 1024 * 1024
FRAME = StackFrame(function="forward", file="/opt/lib/python3.11/site-packages/torch/nn/modules/module.py", line=1532)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, token=TOKEN) as process:
        process.get("/readyz")
        yield process


class Peak:
    """How much memory the server has taken since, at its worst moment; it must answer meanwhile."""

    def __init__(self, server: ServerProcess) -> None:
        self._server, self._process = server, psutil.Process(server.process.pid)
        self._before, self._most = self._process.memory_info().rss, 0
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._failure: OSError | None = None

    def __enter__(self) -> "Peak":
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watching.join(60)
        assert self._failure is None, f"the server did not answer: {self._failure!r}"

    def _watch(self) -> None:
        try:
            self._ask()
        except OSError as error:
            self._failure = error

    def _ask(self) -> None:
        asking = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=30)
        while not self._over.wait(0.01):
            self._most = max(self._most, self._process.memory_info().rss)
            asking.request("GET", "/healthz")
            assert b"ncclwatch" in asking.getresponse().read()
        asking.close()

    @property
    def mib(self) -> float:
        """The most that was taken, beyond what was there before."""
        return (self._most - self._before) / MIB


def raw_line(server: ServerProcess, token: str = "") -> socket.socket:
    """Return a WebSocket on which nothing has been said."""
    line = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    line.sendall(
        f"GET {wire.AGENT_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n{shown}\r\n".encode()
    )
    assert line.recv(4096).startswith(b"HTTP/1.1 101")
    return line


def head(size: int, *, first: int = 0x81) -> bytes:
    """Return the head of a masked frame with so many bytes."""
    return struct.pack("!BBQ", first, 0xFF, size) + b"\0\0\0\0"


def frame(payload: bytes) -> bytes:
    """Return a whole message of text."""
    return head(len(payload)) + payload


def admitted(server: ServerProcess) -> socket.socket:
    """Return the line of an agent that was let in."""
    line = raw_line(server, TOKEN)
    said = wire.encode(wire.Hello(protocol=config.PROTOCOL, agent="x", host="h", version="1"))
    line.sendall(frame(said))
    assert b"welcome" in line.recv(4096)
    return line


def rest_of(line: socket.socket) -> bytes:
    """Return all that still comes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := line.recv(65536):
            found += part
    return found


def push(line: socket.socket, data: bytes) -> None:
    """Send what the other side takes, within a second."""
    line.settimeout(1.0)
    with contextlib.suppress(OSError):
        line.sendall(data)


def test_frames_of_16_mb_without_a_token_cost_kilobytes_each(server: ServerProcess) -> None:
    data = head(16 * MIB - 1) + b"x" * (16 * MIB - 100)
    with Peak(server) as peak, contextlib.ExitStack() as open_lines:
        lines = [open_lines.enter_context(raw_line(server)) for _ in range(60)]
        pushing = [threading.Thread(target=push, args=(line, data)) for line in lines]
        for each in pushing:
            each.start()
        for each in pushing:
            each.join(30)
    assert peak.mib < 20


def test_nor_do_they_cost_more_of_who_has_a_token_and_has_not_said_hello(server: ServerProcess) -> None:
    data = head(16 * MIB - 1) + b"x" * MIB
    with Peak(server) as peak, contextlib.ExitStack() as open_lines:
        lines = [open_lines.enter_context(raw_line(server, TOKEN)) for _ in range(60)]
        for line in lines:
            push(line, data)
        assert all(b"must be its hello" in line.recv(4096) for line in lines)
    assert peak.mib < 20


@pytest.mark.parametrize("introduce", [admitted, lambda server: raw_line(server, TOKEN)], ids=["agent", "nobody"])
def test_pings_of_a_peer_that_never_reads_are_not_answered_in_memory(server: ServerProcess, introduce: object) -> None:
    pings = (b"\x89\xfd\0\0\0\0" + b"p" * 125) * 2000
    with Peak(server) as peak, introduce(server) as line:  # type: ignore[operator]
        line.settimeout(2.0)
        with contextlib.suppress(OSError):
            for _ in range(200):
                line.sendall(pings)
    assert peak.mib < 20


def test_stacks_of_15_mb_are_refused_by_their_first_bytes(server: ServerProcess) -> None:
    with Peak(server) as peak, FakeAgent(server.url, token=TOKEN, job="bystander") as bystander:
        for _ in range(5):
            with admitted(server) as line:
                push(line, head(15 * MIB) + b'{"type":"stacks","index":0,"dumps":[' + b"x" * (15 * MIB))
                assert b"kind stacks has 15728640 bytes; the limit is 4194304" in line.recv(4096)
        before = bystander.progress
        until(lambda: bystander.progress > before + 1)
    assert peak.mib < 30


def test_what_follows_long_stacks_is_taken_after_them(server: ServerProcess) -> None:
    threads = tuple((f"T{number}", (FRAME,) * 100) for number in range(32))
    dumps = tuple(StackDump(rank=rank, threads=threads) for rank in range(2)) * 6
    long = frame(wire.encode(wire.Stacks(index=0, dumps=dumps)))
    assert len(long) > 4 * MIB - 400_000
    said = wire.Announce(index=0, job="j", instance="i", attempt=0, world_size=2, ranks=(0, 1), terminal=False)
    with admitted(server) as line:
        line.sendall(frame(wire.encode(said)))
        with Peak(server):
            for _ in range(30):
                line.sendall(long)
            line.sendall(frame(wire.encode(wire.Gone(index=7))))
            said_last = rest_of(line)
    assert b"job number 7" in said_last  # it came last, though it was the shortest


def test_all_lines_together_have_a_budget_and_agents_that_keep_little_live_on(server: ServerProcess) -> None:
    data = head(8 * MIB) + b'{"type":"views","index":0,"ranks":[' + b" " * (8 * MIB - 100)
    with (
        Peak(server) as peak,
        FakeAgent(server.url, token=TOKEN, job="bystander") as bystander,
        contextlib.ExitStack() as open_lines,
    ):
        for _ in range(60):
            push(open_lines.enter_context(admitted(server)), data)
        refused = server.get("/metrics").text
        before = bystander.progress
        until(lambda: bystander.progress > before + 1)
        assert not bystander.refused
    assert 'ncclwatch_agents_refused_total{at="memory"} 0.0' not in refused
    assert peak.mib < 350


def test_what_was_kept_is_given_back(server: ServerProcess) -> None:
    with admitted(server) as line:
        push(line, head(8 * MIB) + b'{"type":"views","index":0,"ranks":[' + b" " * MIB)
        until(lambda: "ncclwatch_agent_lines_kept_bytes 0.0" not in server.get("/metrics").text)
    until(lambda: "ncclwatch_agent_lines_kept_bytes 0.0" in server.get("/metrics").text)
