"""What a small message can become in the server, on a real process: it stays as small as it came, or is refused."""

from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from ncclwatch.contract import wire
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


def admitted(server: ServerProcess, job: str, world_size: int = 64) -> ClientConnection:
    """Return the line of an agent that speaks for 64 ranks of a job."""
    line = open_line(server.url, TOKEN)
    hello(line)
    assert isinstance(reply(line), wire.Welcome)
    ranks = tuple(range(64))
    line.send(
        wire.encode(
            wire.Announce(index=0, job=job, instance="i", attempt=0, world_size=world_size, ranks=ranks, terminal=False)
        ).decode()
    )
    return line


def hostile(rank: int, *lists: Runs) -> str:
    """Return a message of two kilobytes with a view of a rank in groups of many."""
    groups = tuple(
        GroupView(name=str(n), desc="", ranks=(), enqueued=2, completed=1, prefix_hash=1, runs=runs)
        for n, runs in enumerate(lists)
    )
    view: RankView = replace(forged_view(rank), groups=groups)
    return wire.encode(wire.Views(index=0, ranks=(view,))).decode()


def refusal(line: ClientConnection) -> str:
    """Return why the server hung up."""
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
