"""What a small message can become in the server, on a real process: it stays as small as it came, or is refused."""

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Self

import psutil
import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.sync.client import ClientConnection
from websockets.uri import parse_uri

from ncclwatch.contract import config, wire
from ncclwatch.contract.model.rank import GroupView, RankView
from ncclwatch.contract.ring.members import Runs
from tests.integration.fake_agent import FakeAgent, hello, open_line, reply, until
from tests.integration.server_process import ServerProcess
from tests.integration.test_server_ownership import forged_view

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TOKEN = "Qm7wYx2LkT9sVb4NcR6hJd"
MIB = 1024 * 1024
MESSAGES, GROWTH_MIB = 1_000, 64
WORLD = 200_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("sizes"), token=TOKEN, program="tests.integration.pages_server"
    ) as process:
        process.get("/readyz")
        yield process


def announcement(job: str, world_size: int = 64) -> wire.Announce:
    ranks = tuple(range(64))
    return wire.Announce(index=0, job=job, instance="i", attempt=0, world_size=world_size, ranks=ranks, terminal=False)


def admitted(server: ServerProcess, job: str, world_size: int = 64) -> ClientConnection:
    """Return the line of an agent that speaks for 64 ranks of a job."""
    line = open_line(server.url, TOKEN)
    hello(line)
    assert isinstance(reply(line), wire.Welcome)
    line.send(wire.encode(announcement(job, world_size)).decode())
    return line


def hostile(rank: int, *lists: Runs) -> str:
    """Return a message of two kilobytes with a view of a rank in groups of many."""
    groups = tuple(
        GroupView(name=str(n), desc="", ranks=(), enqueued=2, completed=1, prefix_hash=1, runs=runs)
        for n, runs in enumerate(lists)
    )
    view: RankView = replace(forged_view(rank), groups=groups)
    return wire.encode(wire.Views(index=0, ranks=(view,))).decode()


class RawLine:
    """An agent's line that reads what the server said before it reset the connection.

    `ClientConnection` forgets the messages that nobody had taken when the connection ends.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.protocol = ClientProtocol(parse_uri(server.url.replace("http", "ws", 1) + wire.AGENT_PATH))
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        request = self.protocol.connect()
        request.headers["Authorization"] = f"Bearer {TOKEN}"
        self.protocol.send_request(request)
        self.flush()
        while self.protocol.state is State.CONNECTING:
            self.protocol.receive_data(self.socket.recv(65536))
        self.protocol.events_received()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        for data in self.protocol.data_to_send():
            self.socket.sendall(data)

    def send(self, message: str) -> None:
        """Send a message, as much of it as the server takes."""
        self.protocol.send_text(message.encode())
        with suppress(ConnectionError):
            self.flush()

    def messages(self) -> Iterator[wire.ServerMessage]:
        """Yield what the server says until the connection ends."""
        with suppress(ConnectionError):
            while data := self.socket.recv(65536):
                self.protocol.receive_data(data)
                for event in self.protocol.events_received():
                    if isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                        yield wire.decode_from_server(event.data.decode())


def refusal(line: ClientConnection) -> str:
    """Return why the server hung up."""
    said = reply(line)
    while isinstance(said, wire.Command):
        said = reply(line)
    assert isinstance(said, wire.Refused)
    with pytest.raises(ConnectionClosed):
        line.recv(timeout=10)
    return said.reason


def memory(server: ServerProcess) -> int:
    return psutil.Process(server.process.pid).memory_info().rss


def test_a_thousand_views_whose_groups_are_said_to_have_millions_of_members_cost_next_to_nothing(
    server: ServerProcess,
) -> None:
    with FakeAgent(server.url, token=TOKEN, job="bystander", host="node2", agent="b") as bystander:
        until(lambda: server.job("bystander").get("ranks_seen") == 2)
        before = memory(server)
        for number in range(20):  # such a line is let go with its first view
            with admitted(server, "none") as line:
                line.send(hostile(number, *(((number + more, 1, 1_000_000),) for more in range(4))))
                assert "do not fit into ranks 0..63 of its job" in refusal(line)
        with admitted(server, "all", WORLD) as line:  # of members that such a job can have
            for number in range(MESSAGES):
                runs: list[Runs] = [((number + more, 1, WORLD - number - more),) for more in range(4)]
                line.send(hostile(number % 64, *runs))
            line.send(wire.encode(wire.Gone(index=7)).decode())
            assert "job number 7" in refusal(line)
            grown = (memory(server) - before) / MIB
        assert grown < GROWTH_MIB
        progress = bystander.progress
        until(lambda: bystander.progress > progress + 2)
        assert (memory(server) - before) / MIB < GROWTH_MIB
        assert not bystander.refused


def padded(begin: str, part: str, end: str, size: int) -> str:
    """Return a message of about so many bytes."""
    return begin + ",".join([part] * (size // (len(part) + 1))) + end


FACTS = '{"type":"facts","index":0,"alike":'
OPERATION = '{"group":"","seq":1,"op":"send"}'
VIEW = wire.encode(wire.Views(index=0, ranks=(forged_view(0),))).decode()
TOO_MUCH = {
    "facts of 7.9 MB": (padded(FACTS + "[[[", "0", "],[[]]]]}", 7_900_000), "kind facts has 7900.* limit is 524288"),
    "a rank named again and again": (padded(FACTS + "[[[", "0", "],[[]]]]}", 500_000), "ranks are said to be set up"),
    "ranks that joined again": (padded(FACTS + '[],"joined":[', "0", "]}", 60_000), "said to be joined in a job of 64"),
    "parameters of 3 MB": (
        padded('{"type":"parameters","index":0,"key":["a","b"],"ranks":[[0,[', '"w"', "]]]}", 3_000_000),
        "of kind parameters has .* the limit is 2097152",
    ),
    "one rank's parameters of 2 MB": (
        padded('{"type":"parameters","index":0,"key":["a","b"],"ranks":[[0,[', '"w"', "]]]}", 2_000_000),
        "an element of .* bytes in a long message; the limit is 524288",
    ),
    "testimonies of 5 MB": (
        padded('{"type":"testimonies","index":0,"ranks":[', '{"rank":0}', "]}", 5_000_000),
        "of kind testimonies has .* the limit is 4194304",
    ),
    "a loop with buckets without end": (
        padded('{"type":"loops","index":0,"ranks":[[0,"",1,1,1,true,true,[', '["",1]', "]]]}", 50_000),
        "a loop of rank 0 with 7142 data buckets .* the limits are 512 and 32",
    ),
    "more operations than a view tells": (
        VIEW.replace('"history":[]', f'"history":[{",".join([OPERATION] * 401)}]'),
        "a view of rank 0 with 401 operations; the limit is 400",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("message", "sentence"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_is_more_than_any_agent_tells_is_refused_with_a_sentence(
    server: ServerProcess, message: str, sentence: str
) -> None:
    with RawLine(server) as line:
        line.send(wire.encode(wire.Hello(protocol=config.PROTOCOL, agent="a1", host="node1", version="0.1.0")).decode())
        line.send(wire.encode(announcement("much")).decode())
        line.send(message)
        *_, last = line.messages()
    assert isinstance(last, wire.Refused)
    assert re.search(sentence, last.reason)
