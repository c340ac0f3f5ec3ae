"""What fails at one rank, job or line ends no agent, and one that hangs or is killed makes room for the next."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from websockets.asyncio.server import serve

from ncclwatch.contract import digests
from ncclwatch.contract.machine.liveness import EXIT_STOOD_STILL
from tests.integration.agent_node import NO_SERVER, ROOT, Node
from tests.integration.agent_stub import Stub, url_of
from tests.integration.fake_agent import until
from tests.integration.real_jobs import kill_all, runtime, torchrun

__all__ = ["runtime"]  # a fixture

pytestmark = pytest.mark.integration


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "run")
    yield node
    node.close()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Stub, str]]:
    stub = Stub()
    async with serve(stub.welcome, "127.0.0.1", 0, max_size=None) as server:
        yield stub, url_of(server)


def sabotaged(node: Node, sabotage: str) -> Path:
    """Start an agent. Its sabotage lasts as long as the path is there."""
    when = node.directory.parent / "now"
    node.directory.mkdir(mode=0o700, exist_ok=True)
    node.service = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.sabotaged_agent", "--runtime-dir", str(node.directory)],
        cwd=ROOT, env={**os.environ, "SABOTAGE": sabotage, "SABOTAGE_WHEN": str(when)}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return when


def ranks_in(digest: bytes) -> tuple[int, list[int]]:
    """Return of which job and ranks a digest is."""
    index, rows, _ = digests.split_digest(digest)
    return index, [int(row[0]) for row in digests.RANK_ROW.iter_unpack(rows)]


async def digest_of(stub: Stub, ranks: list[int], index: int = 1) -> None:
    """Wait for a digest of just these ranks."""
    while True:
        message = await stub.next()
        if isinstance(message, bytes) and ranks_in(message) == (index, ranks):
            return


@pytest.mark.parametrize(
    ("sabotage", "told"),
    [("one rank", "looking at rank 1 of job job1"), ("figures of one rank", "the figures of rank 1 of job job1")],
)
def test_a_rank_that_cannot_be_looked_at_is_left_alone_and_comes_back(node: Node, sabotage: str, told: str) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            node.rank(0, url)
            node.rank(1, url)
            when = sabotaged(node, sabotage)
            await digest_of(stub, [0, 1])
            when.touch()
            await digest_of(stub, [0])
            await digest_of(stub, [0])
            when.unlink()
            await digest_of(stub, [0, 1])
        assert node.log().count(f"{told} failed: this is a bug in ncclwatch") == 1
        assert "KeyError: 'sabotaged'" in node.log()

    asyncio.run(scenario())


def test_a_ring_that_cannot_be_looked_at_from_the_first_is_no_hindrance(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            when = sabotaged(node, "one rank")
            when.touch()
            node.rank(1, url)
            node.rank(0, url)
            await digest_of(stub, [0])
            when.unlink()
            await digest_of(stub, [0, 1])

    asyncio.run(scenario())


@pytest.mark.parametrize("sabotage", ["one job", "the search"])
def test_what_fails_at_each_tick_ends_nothing_else(node: Node, sabotage: str) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            node.world_size = 1
            node.rank(0, url)
            node.rank(0, url, job="job2")
            when = sabotaged(node, sabotage)
            await digest_of(stub, [0], index=2)
            when.touch()
            until(lambda: "this is a bug in ncclwatch; everything else goes on" in node.log())
            for index in (1, 2, 1, 2):
                await digest_of(stub, [0], index)
        assert node.log().count("Traceback") == 1

    asyncio.run(scenario())


def test_a_line_that_fails_in_an_unforeseen_way_is_dialled_again(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            node.world_size = 1
            node.rank(0, url)
            when = sabotaged(node, "the line")
            await digest_of(stub, [0])
            when.touch()
            await stub.sockets[-1].close()
            until(lambda: "has ended with KeyError" in node.log())
            when.unlink()
            while len(stub.sockets) < 2:
                await stub.next()
            await digest_of(stub, [0])

    asyncio.run(scenario())


def test_an_agent_whose_tick_hangs_ends_and_lets_go_of_its_lock(node: Node) -> None:
    node.rank(0, NO_SERVER)
    when = sabotaged(node, "tick hangs")
    assert node.service is not None
    until(lambda: (node.directory / "agent.log").exists() and "job job1" in node.log())
    when.touch()
    assert node.service.wait(30) == EXIT_STOOD_STILL
    assert not node.is_locked()
    assert "in stuck" in node.log()  # where it stood
    assert "ncclwatch-agent ends with code 4, to be started again" in node.log()


def test_an_agent_whose_end_hangs_ends_all_the_same(node: Node) -> None:
    node.rank(0, NO_SERVER)
    when = sabotaged(node, "its end hangs")
    assert node.service is not None
    until(lambda: (node.directory / "agent.log").exists() and "job job1" in node.log())
    when.touch()
    node.service.terminate()
    assert node.service.wait(30) == EXIT_STOOD_STILL
    assert not node.is_locked()
    assert "in stuck" in node.log()


def test_an_agent_whose_tick_is_cancelled_ends_with_a_word(node: Node) -> None:
    node.rank(0, NO_SERVER)
    when = sabotaged(node, "tick is cancelled")
    assert node.service is not None
    until(lambda: (node.directory / "agent.log").exists() and "job job1" in node.log())
    when.touch()
    assert node.service.wait(30) != 0
    assert not node.is_locked()
    assert "the agent ends: this is a bug in ncclwatch; the next rank that looks starts another" in node.log()


def test_a_line_whose_task_is_cancelled_is_begun_anew(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            node.world_size = 1
            node.rank(0, url)
            when = sabotaged(node, "line is cancelled")
            await digest_of(stub, [0])
            when.touch()
            await stub.sockets[-1].close()
            until(lambda: "has ended though nobody told it to" in node.log())
            when.unlink()
            while len(stub.sockets) < 2:
                await stub.next()
            await digest_of(stub, [0])

    asyncio.run(scenario())


def test_the_ranks_of_an_agent_that_was_killed_start_another(runtime: Path) -> None:
    job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=NO_SERVER)
    card = runtime / f"ncclwatch-{os.getuid()}" / "agent.json"
    try:
        until(card.exists, 60.0, "an agent")
        first = int(json.loads(card.read_text())["pid"])
        os.kill(first, signal.SIGKILL)
        until(lambda: card.exists() and int(json.loads(card.read_text())["pid"]) != first, 60.0, "another one")
        assert psutil.Process(int(json.loads(card.read_text())["pid"])).is_running()
    finally:
        kill_all(runtime)
        job.communicate()
