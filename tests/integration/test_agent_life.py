"""The whole agent as a process of its own: how it begins, what it reports, and that it leaves nothing behind."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from websockets.asyncio.server import serve

from ncclwatch.contract import wire
from ncclwatch.contract.model.rank import RankView, WaitKind
from ncclwatch.contract.ring.layout import HEADER_BYTES
from tests.integration.agent_node import AGENT, NO_SERVER, Node, hear, tell
from tests.integration.agent_stub import Stub, url_of

pytestmark = pytest.mark.integration


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "run")
    yield node
    node.close()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Stub, str]]:
    """Run a server for agents."""
    stub = Stub()
    async with serve(stub.welcome, "127.0.0.1", 0, max_size=None) as server:
        yield stub, url_of(server)


async def announced(stub: Stub) -> wire.Announce:
    """Return the announcement of both ranks, and let what came before it pass."""
    while True:
        message = await stub.next()
        if isinstance(message, wire.Announce) and message.ranks == (0, 1):
            return message


async def announcement(stub: Stub) -> wire.Announce:
    """Return the next announcement."""
    while True:
        message = await stub.next()
        if isinstance(message, wire.Announce):
            return message


async def views(stub: Stub) -> wire.Views:
    """Return the next views."""
    while True:
        message = await stub.next()
        if isinstance(message, wire.Views):
            return message


async def last_view(stub: Stub, rank: int, kind: str) -> RankView:
    """Return the view of a rank that ended in this way."""
    while True:
        for view in (await views(stub)).ranks:
            if view.rank == rank and view.ending is not None and view.ending.kind == kind:
                return view


async def stacks(stub: Stub) -> wire.Stacks:
    """Return the next stacks."""
    while True:
        message = await stub.next()
        if isinstance(message, wire.Stacks):
            return message


async def gone(stub: Stub) -> wire.Gone:
    """Return the news that a job is over."""
    while True:
        message = await stub.next()
        if isinstance(message, wire.Gone):
            return message


async def command(stub: Stub, kind: wire.CommandKind, text: str = "") -> None:
    """Ask the agent for something of both ranks."""
    asked = wire.Command(id=5, kind=kind, index=1, ranks=(0, 1, 7), text=text)
    await stub.sockets[-1].send(wire.encode(asked).decode())


def test_an_agent_outlives_its_ranks_long_enough_to_say_how_each_ended_and_then_leaves_nothing(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            first, second = node.rank(0, url), node.rank(1, url)
            pid = node.spawn_agent()
            assert os.getsid(pid) == pid
            said = await announced(stub)
            assert (said.job, said.instance, said.world_size, said.terminal) == ("job1", "here", 2, True)
            note = json.dumps({"kind": "crashed", "exit_code": 1, "exception": "ValueError: x"})
            tell(first, f"note {note}")
            said_so = await last_view(stub, 0, "crashed")
            assert said_so.ending is not None and said_so.ending.exception == "ValueError: x"
            first.kill()
            first.wait()  # as torchrun would: the zombie is gone at once
            killed = await last_view(stub, 0, "signalled")
            assert killed.ending is not None
            assert (killed.ending.signal, killed.ending.exception) == (9, "ValueError: x")
            assert [op.seq for op in killed.history] == [1]
            (other,) = (await views(stub)).ranks
            assert (other.rank, other.ending) == (1, None)
            tell(second, "exit 3")
            crashed = await last_view(stub, 1, "crashed")
            assert crashed.ending is not None and crashed.ending.exit_code == 3
            assert (await gone(stub)).index == said.index
            await node.agent_ended()
        assert sorted(path.name for path in node.directory.iterdir()) == ["agent.lock", "agent.log"]
        assert not node.is_locked()
        assert "rank 1 (pid" in node.log() and "crashed with exit code 3" in node.log()

    asyncio.run(scenario())


def test_views_stacks_and_the_terminal_are_there_on_command(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            first = node.rank(0, url)
            node.rank(1, url)
            node.spawn_agent()
            await announced(stub)
            await command(stub, wire.CommandKind.INSPECT)
            found = await views(stub)
            assert (found.reply_to, [view.rank for view in found.ranks]) == (5, [0, 1])
            wait = found.ranks[0].threads[0].wait
            assert wait is not None and wait.kind is WaitKind.STORE and wait.site is not None
            assert found.ranks[0].sources[0].text == "def main() -> None:"
            await command(stub, wire.CommandKind.STACKS)
            dumps = (await stacks(stub)).dumps
            assert [dump.failure for dump in dumps] == ["", ""]
            assert "main" in [frame.function for _, frames in dumps[0].threads for frame in frames]
            await command(stub, wire.CommandKind.PRINT, "rank 1 is to blame")
            assert first.stderr is not None
            assert await asyncio.to_thread(first.stderr.readline) == "rank 1 is to blame\n"

    asyncio.run(scenario())


def test_without_any_server_it_waits_a_little_and_then_leaves_nothing_either(node: Node) -> None:
    rank = node.rank(0, NO_SERVER)
    node.spawn_agent()
    tell(rank, "exit 1")
    asyncio.run(node.agent_ended())
    assert node.rings() == []
    assert "no server at http://127.0.0.1:9" in node.log()
    assert "no server heard how its ranks ended" in node.log()


def test_a_new_agent_after_a_killed_one_begins_with_a_full_picture(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            node.rank(0, url)
            node.rank(1, url)
            node.spawn_agent()
            await announced(stub)
            signal.pidfd_send_signal(node.agent_pidfd, signal.SIGKILL)
            await node.agent_ended()
            os.close(node.agent_pidfd)
            assert not node.is_locked()
            node.spawn_agent()
            assert (await announced(stub)).job == "job1"
            assert len(stub.sockets) == 2

    asyncio.run(scenario())


class Relay:
    """Passes bytes between an agent and its server, and may hold back what the server says."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.open = asyncio.Event()
        self.open.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        there = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(self._pump(reader, there[1], held=False), self._pump(there[0], writer, held=True))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if held:
                    await self.open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def test_a_job_that_begins_while_the_agent_takes_its_leave_is_not_left_alone(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            relay = Relay(int(url.rpartition(":")[2]))
            server = await asyncio.start_server(relay.carry, "127.0.0.1", 0)
            through = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with server:
                first = node.rank(0, through, job="first")
                pid = node.spawn_agent()
                assert isinstance(await announcement(stub), wire.Announce)
                # A good-bye takes a second at most: of the second job only its ring is missing when it begins.
                second = await asyncio.to_thread(node.rank, 0, through, job="second", held="1")
                relay.open.clear()
                tell(first, "exit 0")
                await gone(stub)
                tell(second, "write")
                await asyncio.to_thread(hear, second, "ready")
                relay.open.set()
                assert (await announcement(stub)).job == "second"
                assert json.loads(node.card())["pid"] == pid
                tell(second, "exit 0")
                await gone(stub)
                await node.agent_ended()
                assert len(stub.sockets) == 2

    asyncio.run(scenario())


def test_an_agent_that_is_told_to_stop_takes_away_the_rings_of_jobs_whose_end_was_heard(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            over = node.rank(0, url, job="over")
            node.rank(0, url, job="alive")
            node.spawn_agent()
            tell(over, "exit 0")
            while (await last_view(stub, 0, "exited")).pid != over.pid:
                pass
            signal.pidfd_send_signal(node.agent_pidfd, signal.SIGTERM)
            await gone(stub)
            await node.agent_ended()
        assert [path.parent.name for path in node.directory.glob("*/*.ring")] == ["alive"]

    asyncio.run(scenario())


def test_what_is_no_ring_is_told_of_once_and_left_alone(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            job = node.directory / "job1"
            node.directory.mkdir(mode=0o700)
            job.mkdir(mode=0o700)
            (job / "7-7.ring").write_bytes(b"garbage")
            (job / "8-8.ring").write_bytes(b"\xff" * 4_000_000)
            os.mkfifo(job / "9-9.ring")
            (job / "6-6.ring").symlink_to("/dev/zero")
            rank, victim = node.rank(0, url), node.rank(1, url)
            node.spawn_agent()
            await announced(stub)
            tell(victim, "truncate")
            while node.log().count("It is left alone") < 3:
                assert isinstance(await stub.next(), bytes | wire.Announce | wire.Views)
            tell(rank, "exit 0")
            await gone(stub)
            await node.agent_ended()
        log = node.log()
        assert log.count("7-7.ring: 7 bytes, a ring has") == 1
        assert log.count("8-8.ring: not a ring of ncclwatch") == 1
        assert log.count(f"1-{victim.pid}.ring: 100 bytes") == 1
        assert node.rings() == ["1", "6", "7", "8", "9"]

    asyncio.run(scenario())


def test_the_ring_of_a_job_that_was_over_long_ago_is_removed_and_not_reported(node: Node) -> None:
    old = node.rank(0, NO_SERVER)
    tell(old, "exit 1")
    old.wait()
    (ring,) = node.directory.glob("*/*.ring")
    with ring.open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write((1).to_bytes(8, "little"))  # the pulse of a minute after the boot of the machine
    node.spawn_agent()
    asyncio.run(node.agent_ended())
    assert node.rings() == []
    assert "its process ended before this agent began" in node.log()
    assert "no server" not in node.log()


def test_a_rank_that_detached_may_end_as_it_likes(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            rank = node.rank(0, url)
            tell(rank, "detach")
            assert rank.stdout is not None
            assert rank.stdout.readline() == "done\n"
            node.spawn_agent()
            tell(rank, "exit 1")
            heard: list[wire.AgentMessage | bytes] = []
            while not any(isinstance(message, wire.Gone) for message in heard):
                heard.append(await stub.next())
            assert not any(isinstance(message, wire.Views) for message in heard)
            await node.agent_ended()

    asyncio.run(scenario())


def test_a_service_stays_until_it_is_told_and_a_second_agent_says_who_is_there(node: Node) -> None:
    rank = node.rank(0, NO_SERVER)
    node.service = subprocess.Popen(
        [*AGENT, "--runtime-dir", str(node.directory)], stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    node.card()
    second = subprocess.run(
        [*AGENT, "--runtime-dir", str(node.directory)], capture_output=True, text=True, timeout=30
    )  # fmt: skip
    assert second.returncode == 2
    assert f"an agent already watches {node.directory} (pid {node.service.pid})" in second.stderr
    node.service.terminate()
    assert node.service.wait(timeout=10) == 0
    assert rank.poll() is None
    assert node.rings() == ["0"]
    assert not (node.directory / "agent.json").exists()


def test_a_directory_that_cannot_be_used_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = subprocess.run(
        [*AGENT, "--runtime-dir", str(tmp_path / "file")], capture_output=True, text=True, timeout=30
    )  # fmt: skip
    assert found.returncode == 2
    assert "name a directory of your own with --runtime-dir" in found.stderr
    assert "Traceback" not in found.stderr


def test_an_unknown_flag_is_refused_with_a_hint() -> None:
    found = subprocess.run([*AGENT, "--port", "1"], capture_output=True, text=True, timeout=30)
    assert found.returncode == 2
    assert "No such option '--port'" in found.stderr


def test_a_log_that_cannot_be_written_costs_nothing_but_the_log(node: Node) -> None:
    node.directory.mkdir(mode=0o700)
    (node.directory / "agent.log").mkdir()
    rank = node.rank(0, NO_SERVER)
    node.spawn_agent()
    tell(rank, "exit 0")
    asyncio.run(node.agent_ended())
    assert node.rings() == []


def test_an_agent_whose_card_found_no_room_writes_it_as_soon_as_there_is_some(node: Node) -> None:
    in_its_way = node.directory / "agent.json" / "x"
    node.directory.mkdir(mode=0o700)
    in_its_way.mkdir(parents=True)
    node.service = subprocess.Popen(
        [*AGENT, "--runtime-dir", str(node.directory)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert node.service.stderr is not None
    assert "until that succeeds" in next(line for line in node.service.stderr if "cannot write" in line)
    in_its_way.rmdir()
    in_its_way.parent.rmdir()
    assert json.loads(node.card())["pid"] == node.service.pid
