"""Which server a job's news goes to: the one it names, or one of the node's own where nobody named any."""

import asyncio
import contextlib
import http.server
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from websockets.asyncio.server import serve

from ncclwatch.contract import config, wire
from ncclwatch.contract.ring.reader import Ring
from ncclwatch_agent import one_agent_per_node
from ncclwatch_agent.agent import Settings, watch
from ncclwatch_agent.commands import CommandDesk
from ncclwatch_agent.ranks.jobs import JobKey, LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank
from ncclwatch_agent.server_choice import Servers, read_token
from ncclwatch_agent.uplink.local_server import LocalServer
from tests.integration.agent_node import Node, tell
from tests.integration.agent_stub import Stub, url_of
from tests.ports import free_port

pytestmark = pytest.mark.integration

HELLO = wire.Hello(protocol=config.PROTOCOL, agent="a1", host="node1", version="1")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "run")
    yield node
    node.close()


@pytest.fixture
def stranger() -> Iterator[int]:
    """Run a web server that is none of ours; gives its port."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def job_of(node: Node, server: str, *, named: bool, local_world: int = 2) -> LocalJob:
    """Start a rank and return its job as an agent sees it."""
    node.rank(0, server, server_named=str(int(named)), local_world=str(local_world))
    (path,) = node.directory.glob("*/*.ring")
    rank = LocalRank(Ring(str(path)))
    rank.observe(1)
    job = LocalJob(JobKey.of(rank), 1, rank)
    job.add(rank)
    return job


@contextlib.asynccontextmanager
async def dialling(job: LocalJob) -> AsyncIterator[tuple[Servers, LocalServer]]:
    """Dial the server of a job."""
    local = LocalServer()
    servers = Servers(HELLO, CommandDesk(lambda: [job]), lambda: [job], local)
    servers.of(job)
    try:
        yield servers, local
    finally:
        await servers.close()
        job.close()


async def connected(servers: Servers, job: LocalJob) -> None:
    """Wait until a server listens to the job's news."""
    while not servers.of(job).connected:
        await asyncio.sleep(0.02)


def test_where_nobody_answers_and_nobody_named_a_server_one_is_started(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setattr(config, "DEFAULT_PORT", port)
    job = job_of(node, f"http://localhost:{port}", named=False)

    async def scenario() -> None:
        async with dialling(job) as (servers, local):
            await connected(servers, job)
            while not local.port:  # the next try to dial may be answered before the server has said that it is ready
                await asyncio.sleep(0.02)
            assert local.port == port
            assert servers.of(job).url in (f"http://127.0.0.1:{port}", f"http://localhost:{port}")
        assert not local.alive

    asyncio.run(scenario())


def test_where_something_else_has_the_port_one_is_started_beside_it(node: Node, stranger: int) -> None:
    job = job_of(node, f"http://127.0.0.1:{stranger}", named=False)

    async def scenario() -> None:
        async with dialling(job) as (servers, local):
            await connected(servers, job)
            assert local.port not in (0, stranger)

    asyncio.run(scenario())


def test_a_wrong_server_that_was_named_is_told_of_on_the_terminal_and_not_replaced(node: Node, stranger: int) -> None:
    job = job_of(node, f"http://127.0.0.1:{stranger}", named=True)

    async def scenario() -> None:
        async with dialling(job) as (_, local):
            stderr = node.ranks[0].stderr
            assert stderr is not None
            said = await asyncio.to_thread(stderr.readline)
            assert said.startswith(f"ncclwatch: http://127.0.0.1:{stranger} is not an ncclwatch server")
            assert "NCCLWATCH_SERVER" in said
            assert not local.alive

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_told_of_later_and_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclwatch_agent.server_choice.COMPLAIN_S", 0.5)
    job = job_of(node, f"http://127.0.0.1:{free_port()}", named=True)

    async def scenario() -> None:
        async with dialling(job) as (servers, local):
            stderr = node.ranks[0].stderr
            assert stderr is not None
            said = await asyncio.to_thread(stderr.readline)
            assert "start ncclwatch-server there" in said
            assert servers.of(job).failing_s() >= 0.5
            assert (len(job.told), local.alive) == (1, False)

    asyncio.run(scenario())


def test_a_job_on_several_nodes_gets_no_server_that_only_this_node_can_reach(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclwatch_agent.server_choice.COMPLAIN_S", 0.0)
    job = job_of(node, f"http://127.0.0.1:{free_port()}", named=False, local_world=1)

    async def scenario() -> None:
        async with dialling(job) as (_, local):
            stderr = node.ranks[0].stderr
            assert stderr is not None
            assert "on a host that all nodes reach" in await asyncio.to_thread(stderr.readline)
            assert not local.alive

    asyncio.run(scenario())


def test_a_server_that_was_named_stays_so_when_its_job_is_gone(node: Node, tmp_path: Path) -> None:
    started = tmp_path / "started"
    local = LocalServer((sys.executable, "-c", f"open({str(started)!r}, 'w')"))
    jobs = [job_of(node, f"https://127.0.0.1:{free_port()}", named=True)]

    async def scenario() -> None:
        servers = Servers(HELLO, CommandDesk(lambda: jobs), lambda: jobs, local)
        uplink = servers.of(jobs[0])
        jobs.pop().close()
        while uplink.failures < 5:
            await asyncio.sleep(0.02)
        await servers.close()
        assert (uplink.url, started.exists()) == (uplink.name, False)

    asyncio.run(scenario())


def test_a_connection_that_no_job_needs_is_closed_after_a_while(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclwatch_agent.server_choice.UNUSED_S", 5.0)

    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as server:
            jobs = [job_of(node, url_of(server), named=True)]
            servers = Servers(HELLO, CommandDesk(lambda: jobs), lambda: jobs, LocalServer())
            first = servers.of(jobs[0])
            await connected(servers, jobs[0])
            job = jobs.pop()
            servers.drop_unused(100.0)
            servers.drop_unused(104.9)
            assert first.connected
            servers.drop_unused(105.0)
            await asyncio.wait_for(stub.sockets[0].wait_closed(), 10)
            assert servers.of(job) is not first
            await servers.close()
            job.close()

    asyncio.run(scenario())


def test_an_agent_that_goes_on_hangs_up_when_the_last_job_of_a_server_is_over(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclwatch_agent.server_choice.UNUSED_S", 0.5)
    settings = Settings(
        runtime=one_agent_per_node.enter(str(node.directory)),
        spawned=False,
        version="1",
        kernel_log=-1,
        has_card=True,
    )

    async def scenario() -> None:
        stub = Stub()
        async with serve(stub.welcome, "127.0.0.1", 0) as server:
            agent = asyncio.create_task(watch(settings))
            rank = await asyncio.to_thread(node.rank, 0, url_of(server))
            while not stub.sockets:
                await asyncio.sleep(0.05)
            tell(rank, "exit 0")
            await asyncio.wait_for(stub.sockets[0].wait_closed(), 30)
            assert not agent.done()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(agent, 20)

    asyncio.run(scenario())


def test_jobs_that_name_an_address_and_jobs_that_find_it_by_default_have_connections_of_their_own(
    node: Node, tmp_path: Path
) -> None:
    other = Node(tmp_path / "other")
    url = f"http://127.0.0.1:{free_port()}"
    named, unnamed = job_of(node, url, named=True), job_of(other, url, named=False)

    async def scenario() -> None:
        servers = Servers(HELLO, CommandDesk(list), list, LocalServer())
        ways = servers.of(named), servers.of(unnamed)
        assert [way.naming for way in ways] == [config.NAMED, config.UNNAMED]
        await servers.close()

    asyncio.run(scenario())
    for job in (named, unnamed):
        job.close()
    other.close()


def test_a_token_comes_from_the_environment_or_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-file\n")
    assert read_token({config.ENV_TOKEN: " direct "}) == "direct"
    assert read_token({config.ENV_TOKEN_FILE: str(path)}) == "from-file"
    assert read_token({config.ENV_TOKEN_FILE: str(tmp_path)}) == ""
    assert read_token({}) == ""
