"""What another user of the machine has put where rings go, or into them, reaches nothing of this user's."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from websockets.asyncio.server import serve

from ncclwatch.contract import wire
from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile, place_of_rings
from ncclwatch_agent.process.job_terminal import Candidate, Terminal, writers
from ncclwatch_agent.stacks.py_spy import find_py_spy
from ncclwatch_agent.witnesses import nccl_ras
from ncclwatch_agent.witnesses.worker_server import Unheard, ask
from tests.integration.agent_node import AGENT, NO_SERVER, Node, tell
from tests.integration.agent_stub import Stub, url_of
from tests.integration.launch import run_ranks
from tests.integration.second_user import UID, fork, needs_root, shared_memory, shell

pytestmark = [pytest.mark.integration, needs_root]
OWN = f"ncclwatch-{os.getuid()}"
KEY = "ssh-rsa AAAA attacker"


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_memory() as place:
        yield place


@pytest.fixture
def node(shared: Path) -> Iterator[Node]:
    made = Node(shared / OWN)
    yield made
    made.close()


@pytest.fixture
def stranger() -> "Iterator[subprocess.Popen[bytes]]":
    """A process of the second user."""
    process = subprocess.Popen(["sleep", "600"], user=UID, group=UID, extra_groups=[])
    yield process
    process.kill()
    process.wait()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Stub, str]]:
    stub = Stub()
    async with serve(stub.welcome, "127.0.0.1", 0, max_size=None) as server:
        yield stub, url_of(server)


async def first(stub: Stub, kind: type[wire.AgentMessage]) -> wire.AgentMessage:
    """Return the next message of a kind."""
    while True:
        message = await stub.next()
        if isinstance(message, kind):
            return message


PLANTED = {
    "directory": "mkdir -m 777 $0/$1",
    "link": "mkdir -m 777 $0/theirs; ln -s $0/theirs $0/$1",
    "link to the victim's": "ln -s $0/victims $0/$1",
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_rank_whose_directory_somebody_made_first_trains_unwatched_after_one_warning(shared: Path, kind: str) -> None:
    (shared / "victims").mkdir(mode=0o700)
    shell(PLANTED[kind], shared, OWN)
    (rank,) = run_ranks("plain.py", 1, shared)
    assert rank.code == 0, rank.err
    assert rank.err.count("ncclwatch:") == 1, rank.err
    assert f"user {UID}" in rank.err and "training goes on" in rank.err and "NCCLWATCH_RUNTIME_DIR" in rank.err
    assert [path for path in shared.rglob("*") if not path.is_symlink() and path.is_file()] == []


@pytest.mark.parametrize("kind", PLANTED)
def test_no_agent_lives_where_somebody_else_can_reach(shared: Path, kind: str) -> None:
    (shared / "victims").mkdir(mode=0o700)
    shell(PLANTED[kind], shared, OWN)
    read, write = os.pipe()
    found = subprocess.run(
        [*AGENT, "--spawned", "--lock-fd", str(read), "--runtime-dir", str(shared / OWN)],
        capture_output=True, text=True, timeout=30, pass_fds=(read,),
    )  # fmt: skip
    os.close(read), os.close(write)
    assert found.returncode == 2, found
    assert "Traceback" not in found.stderr
    assert "--lock-fd" not in found.stderr  # it went no further than the directory
    assert [
        path for path in shared.rglob("*") if not path.is_symlink() and path.is_file() and path.stat().st_uid == 0
    ] == []


@pytest.mark.parametrize("log", ['ln -s "$1" "$0/agent.log"', 'touch "$0/agent.log"'], ids=["link", "file"])
def test_a_directory_of_ours_that_was_open_to_all_is_closed_and_what_was_put_there_is_not_touched(
    node: Node, log: str
) -> None:
    async def scenario() -> None:
        keys = node.directory.parent / "authorized_keys"
        keys.write_text("mine\n")
        node.directory.mkdir()
        node.directory.chmod(0o777)
        shell(f'{log}; ln -s "$1" "$0/agent.json"; mkdir -m 777 "$0/theirs"', node.directory, keys)
        shell('printf x > "$0/theirs/0-1.ring"; mkfifo "$0/agent.json.new"', node.directory)
        async with serving() as (stub, url):
            rank = node.rank(0, url)
            node.service = subprocess.Popen(
                [*AGENT, "--runtime-dir", str(node.directory)], stderr=subprocess.PIPE, text=True
            )
            said = await first(stub, wire.Announce)
            assert isinstance(said, wire.Announce) and said.job == "job1"
            assert node.directory.stat().st_mode & 0o777 == 0o700
            assert keys.read_text() == "mine\n"
            assert (node.directory / "agent.log").read_text() in ("mine\n", "")
            assert json.loads(node.card())["pid"] == node.service.pid  # rename() puts it over the link
            tell(rank, "exit 0")
            await first(stub, wire.Gone)
            node.service.terminate()
            said_last = await asyncio.to_thread(node.service.communicate)
        assert f"theirs belongs to user {UID}" in said_last[1]
        assert (node.directory / "theirs" / "0-1.ring").read_text() == "x"

    asyncio.run(scenario())


def test_a_name_of_a_file_cannot_put_a_line_of_its_own_into_the_log(node: Node) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            rank = node.rank(0, url)
            (node.directory / "job1" / f"x\n{KEY}\x1b[2J.ring").write_text("no ring")
            node.spawn_agent()
            while "It is left alone" not in node.log():
                await stub.next()
            tell(rank, "exit 0")
            await first(stub, wire.Gone)
            await node.agent_ended()

    asyncio.run(scenario())
    told = [line for line in node.log().splitlines() if KEY in line]
    assert [f"x\\n{KEY}\\x1b[2J.ring" in line for line in told] == [True]


def write_ring(directory: Path, site: Path, server: str, names: "subprocess.Popen[bytes] | None" = None) -> str:
    """Write the ring of a rank that waits at a line of a file; return its path. Another process may be named in it."""
    place = place_of_rings(str(directory), "job1")
    ring = RingFile(f"{place.path}/0-1.ring", rank=0, local_rank=0, world=(1, 1), attempt=0, place=place)
    identity = {"job": "job1", "instance": "i", "host": "n", "server": server, "server_named": "1"}
    ring.set_word(Word.IDENTITY, ring.string(json.dumps(identity)))
    ring.set_word(Word.PULSE_NS, time.monotonic_ns())
    recorder = Recorder(ring)
    group = recorder.add_group("0", "default_pg", [0], 0)
    at = ring.string(f"{site}\x1f1\x1fmain")
    recorder.track(recorder.issue(group, tuple(Op).index(Op.ALL_REDUCE), 4, (-1, 1, 1), at), None)
    recorder.enter(WaitKind.STORE, at)
    if names is not None:
        stat = Path(f"/proc/{names.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ring.memory[12:16] = names.pid.to_bytes(4, "little")
        ring.memory[16:24] = int(stat[19]).to_bytes(8, "little")
    return ring.path


def test_a_ring_that_names_a_process_of_somebody_else_is_not_believed(
    node: Node, stranger: "subprocess.Popen[bytes]"
) -> None:
    async def scenario() -> None:
        async with serving() as (stub, url):
            rank = node.rank(1, url)
            path = write_ring(node.directory, Path("/etc/hostname"), url, stranger)
            node.spawn_agent()
            said = await first(stub, wire.Announce)
            assert isinstance(said, wire.Announce) and said.ranks == (1,)
            while "It is left alone" not in node.log():
                assert not isinstance(await stub.next(), wire.Announce)
            assert f"{path}: it names process {stranger.pid}, which belongs to user {UID}" in node.log()
            tell(rank, "exit 0")
            await first(stub, wire.Gone)

    asyncio.run(scenario())
    assert stranger.poll() is None


@pytest.mark.parametrize(("mode", "text"), [(0o600, ""), (0o644, "dist.barrier()")])
def test_an_agent_of_root_has_the_rights_of_the_user_whose_rings_it_reads(shared: Path, mode: int, text: str) -> None:
    directory, source = shared / f"ncclwatch-{UID}", shared / "train.py"
    source.write_text("dist.barrier()\n")
    source.chmod(mode)
    ready, done = os.pipe(), os.pipe()

    async def scenario() -> None:
        async with serving() as (stub, url):

            def be_a_rank() -> None:
                write_ring(directory, source, url)
                os.write(ready[1], b"x")
                os.close(done[1])
                os.read(done[0], 1)

            rank = asyncio.create_task(asyncio.to_thread(fork, be_a_rank))
            await asyncio.to_thread(os.read, ready[0], 1)
            agent = subprocess.Popen(
                [*AGENT, "--runtime-dir", str(directory)], stderr=subprocess.PIPE, text=True,
                env=os.environ | {"NCCLWATCH_TOKEN": "of-root"},
            )  # fmt: skip
            try:
                await first(stub, wire.Announce)
                status = dict(line.split(":\t") for line in Path(f"/proc/{agent.pid}/status").read_text().splitlines())
                assert (status["Uid"].split(), status["Gid"].split()) == ([str(UID)] * 4, [str(UID)] * 4)
                assert (status["Groups"].split(), int(status["CapEff"], 16)) == ([], 0)
                asked = wire.Command(id=5, kind=wire.CommandKind.INSPECT, index=1, ranks=(0,))
                await stub.sockets[-1].send(wire.encode(asked).decode())
                views = await first(stub, wire.Views)
                assert isinstance(views, wire.Views)
                (view,) = views.ranks
                assert {note.text for note in view.sources} == {text}
                assert not [each for each in stub.requests if "of-root" in str(each.headers)]
                assert {path.stat().st_uid for path in directory.rglob("*")} == {UID}
            finally:
                os.close(done[1])
                agent.terminate()
                await asyncio.to_thread(agent.communicate)
                assert await rank == 0

    asyncio.run(scenario())


def test_a_py_spy_that_only_root_may_start_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "py-spy").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_py_spy() == str(tmp_path / "py-spy")

    def look() -> None:
        assert find_py_spy() == ""

    assert fork(look) == 0


def test_nothing_is_put_on_the_terminal_of_a_process_of_somebody_else(
    tmp_path: Path,
) -> None:
    theirs = tmp_path / "torchrun"
    with theirs.open("w") as stderr:
        command = ["sh", "-c", "sleep 600 & echo $! >&1; wait", "torchrun"]
        process = subprocess.Popen(
            command, user=UID, group=UID, extra_groups=[], stderr=stderr, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert writers([Candidate(pid=process.pid, parent=process.pid)]) == []
        assert not asyncio.run(Terminal().write([Candidate(pid=process.pid, parent=process.pid)], "verdict"))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert theirs.read_text() == ""


def test_a_worker_server_of_another_user_is_not_asked(shared: Path) -> None:
    path = str(shared / "7-1.sock")
    ready = os.pipe()

    def listen() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            os.chmod(path, 0o777)  # noqa: PTH101 - Path is one more thing to load
            listener.listen()
            listener.settimeout(30)
            os.write(ready[1], b"x")
            assert listener.accept()[0].recv(100) == b""  # nothing was asked

    async def scenario() -> None:
        listening = asyncio.create_task(asyncio.to_thread(fork, listen))
        await asyncio.to_thread(os.read, ready[0], 1)
        with pytest.raises(Unheard, match="belongs to another user"):
            await ask(path, "ping", 10.0)
        assert await listening == 0

    asyncio.run(scenario())


def test_what_listens_as_another_user_where_nccl_ras_would_is_asked_nothing() -> None:
    ready = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            listener.settimeout(30)
            os.write(ready[1], b"x")
            accepted = listener.accept()[0]
            accepted.settimeout(30)
            assert accepted.recv(100) == b""  # nothing was asked

        async def scenario() -> None:
            listening = asyncio.create_task(asyncio.to_thread(fork, listen))
            await asyncio.to_thread(os.read, ready[0], 1)
            with pytest.raises(nccl_ras.Silent, match=f"belongs to another user .uid {UID}"):
                await nccl_ras.ask(f"127.0.0.1:{listener.getsockname()[1]}", 20.0)
            assert await listening == 0

        asyncio.run(scenario())
    for each in ready:
        os.close(each)


def test_nobody_but_root_can_cut_a_ring_short_under_its_rank(shared: Path) -> None:
    directory = shared / f"ncclwatch-{UID}"

    def train() -> None:
        path = write_ring(directory, Path("train.py"), NO_SERVER)
        with pytest.raises(PermissionError):
            os.truncate(path, 0)
        with pytest.raises(PermissionError):
            open(path, "r+b").close()

    assert fork(train) == 0
    assert len(list(directory.rglob("*.ring"))) == 1


def test_what_root_starts_as_another_user_gets_no_secret_of_roots_environment() -> None:
    code = (
        "import subprocess; from ncclwatch_agent import one_agent_per_node;"
        f"one_agent_per_node.become(({UID}, {UID})); subprocess.run(['/usr/bin/env'])"
    )
    secrets = {"AWS_SECRET_ACCESS_KEY": "of-root", "NCCLWATCH_TOKEN": "of-root", "NCCLWATCH_JOB": "told"}
    found = subprocess.run([sys.executable, "-c", code], env=os.environ | secrets, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "NCCLWATCH_JOB=told" in found.stdout
    assert "of-root" not in found.stdout
