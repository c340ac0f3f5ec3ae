"""Faults of what components stand on: their store, rings, memory, descriptors, clock, and the line between them."""

import contextlib
import itertools
import random
import resource
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.ring import layout
from tests.chaos.faults import DEAD, STOPPED_S, Aim, Fault, Put, kill
from tests.chaos.mounts import mount, unmount
from tests.chaos.proxy import Mischief
from tests.chaos.world import ROOT, World
from tests.integration.agent_node import NO_SERVER
from tests.integration.fake_agent import hello, open_line, reply
from tests.integration.real_jobs import until

ONE_IN = 10  # frames: a cell sees a hundred or so, of which one in a hundred would mostly be none
AHEAD_S = 3600


# -- the store ---------------------------------------------------------------------------------


@contextlib.contextmanager
def store_locked(world: World, aim: Aim) -> Iterator[None]:
    """Another process has the store for itself."""
    with contextlib.closing(sqlite3.connect(world.store, isolation_level=None, timeout=20)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextlib.contextmanager
def store_read_only(world: World, aim: Aim) -> Iterator[None]:
    """A server that is started again finds its store on a file system that is read-only: it says so, and ends.

    Files that are open for writing keep their file system from becoming so.
    """
    place = str(world.store.parent)
    assert world.server is not None
    assert mount("--bind", place, place) and mount("-o", "remount,ro,bind", place), "needs root, and its own mounts"
    try:
        world.server.kill()
        world.server.wait()
        said = world.server_that_ends()
        assert "Read-only file system" in said and "--store" in said, said
        yield
    finally:
        unmount(place)
    world.start_server()


@contextlib.contextmanager
def store_full(world: World, aim: Aim) -> Iterator[None]:
    """The server may write no file beyond 4 KiB (RLIMIT_FSIZE, as test_server_store_away)."""
    with _limited(world, "server", resource.RLIMIT_FSIZE, lambda pid: 4096):
        yield


# -- rings -------------------------------------------------------------------------------------


@contextlib.contextmanager
def ring_torn(world: World, aim: Aim) -> Iterator[None]:
    """Stamps of operations in the target's ring are wrong, as in the middle of writing, while it writes on."""
    path = world.ring(aim.target)
    assert path is not None
    path.chmod(0o600)
    with path.open("r+b", buffering=0) as ring:
        for _ in range(200):
            ring.seek(layout.EVENTS_AT + aim.dice.randrange(256) * layout.EVENT_BYTES)
            ring.write(struct.pack("<I", aim.dice.getrandbits(32)))
            time.sleep(0.01)
        yield


@contextlib.contextmanager
def ring_garbage(world: World, aim: Aim) -> Iterator[None]:
    """The target's ring is overwritten with random bytes, its head too."""
    path = world.ring(aim.target)
    assert path is not None
    path.chmod(0o600)
    with path.open("r+b", buffering=0) as ring:
        ring.write(random.Random(aim.dice.random()).randbytes(layout.RING_BYTES))
    yield


@contextlib.contextmanager
def ring_deleted(world: World, aim: Aim) -> Iterator[None]:
    """The name of the target's ring is taken away; the rank writes on."""
    path = world.ring(aim.target)
    assert path is not None
    path.unlink()
    yield


@contextlib.contextmanager
def ring_truncated(world: World, aim: Aim) -> Iterator[None]:
    """The ring of a rank of another job is cut short under the agent; that rank has ended by itself just before."""
    name = "cut"
    command = [sys.executable, "-m", "tests.integration.agent_child", world.place, "0", "1"]
    said = f'{{"job": "{name}", "instance": "i", "host": "node", "server": "{NO_SERVER}", "server_named": "1"}}'
    victim = subprocess.Popen(
        [*command, said], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert victim.stdout is not None and victim.stdin is not None
        assert victim.stdout.readline() == "ready\n"
        until(lambda: _reads(world.agent(), f"/{name}/"), world.told)
        agent = world.agent()
        victim.stdin.write("truncate\n")
        victim.stdin.flush()
        victim.wait(10)
        yield
        assert world.agent() == agent, "the agent ended of a ring that was cut short"
    finally:
        victim.kill()
        victim.wait()
        for stream in (victim.stdin, victim.stdout):
            if stream is not None:
                stream.close()


def _reads(agent: int, part: str) -> bool:
    """Whether an agent has a ring open whose path has such a part."""
    opened = Path(f"/proc/{agent}/fd").glob("*") if agent else ()
    with contextlib.suppress(OSError):  # it ends, or closes one
        return any(part in str(path.readlink()) for path in opened)
    return False


# -- limits ------------------------------------------------------------------------------------


@contextlib.contextmanager
def shm_full(world: World, aim: Aim) -> Iterator[None]:
    """The file system of the rings has no room (a small tmpfs of its own)."""
    ballast = world.runtime / "ballast"
    with pytest.raises(OSError, match="No space left"), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    try:
        yield
    finally:
        ballast.unlink()


def descriptors(who: str) -> Put:
    """All descriptors that a component may have are in use."""

    @contextlib.contextmanager
    def put(world: World, aim: Aim) -> Iterator[None]:
        with _limited(world, who, resource.RLIMIT_NOFILE, _first_free):
            yield

    return put


def _first_free(pid: int) -> int:
    """Return the lowest descriptor that a process has not in use: from there on it gets none."""
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in itertools.count() if number not in used)


def memory(who: str) -> Put:
    """A component gets no more memory, and so no further thread either: it has no room for its stack."""

    @contextlib.contextmanager
    def put(world: World, aim: Aim) -> Iterator[None]:
        with _limited(world, who, resource.RLIMIT_AS, lambda pid: _mapped(pid) + 1024 * 1024):
            yield

    return put


def _mapped(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@contextlib.contextmanager
def _limited(world: World, who: str, what: int, limit) -> Iterator[None]:  # type: ignore[no-untyped-def]
    pids = world.pids(who, 0)
    before = {pid: resource.prlimit(pid, what) for pid in pids}
    for pid, (_, most) in before.items():
        resource.prlimit(pid, what, (limit(pid), most))
    try:
        yield
    finally:
        for pid, usual in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, what, usual)
    if who == "server" and world.server is not None and world.server.poll() is not None:
        world.start_server()  # as systemd would


# -- the line ----------------------------------------------------------------------------------


def frames(kind: str) -> Put:
    """One in ten frames between agent and server is dropped, doubled, swapped with the next, or cut with the line."""

    @contextlib.contextmanager
    def put(world: World, aim: Aim) -> Iterator[None]:
        world.proxy.mischief = Mischief(kind, ONE_IN, aim.dice.randrange(10**9))
        try:
            yield
        finally:
            world.proxy.mischief = None
            world.proxy.hang_up()  # TCP itself loses nothing: after a loss there is another connection

    return put


@contextlib.contextmanager
def old_agent(world: World, aim: Aim) -> Iterator[None]:
    """An agent of an older version connects as well, and is refused with a sentence."""
    with open_line(world.proxy.url) as line:
        hello(line, agent="old", protocol=config.PROTOCOL - 1, host="node")
        said = reply(line)
    assert f"speaks protocol {config.PROTOCOL - 1}" in getattr(said, "reason", ""), said
    yield


# -- time and numbers --------------------------------------------------------------------------


def clock(jump_s: int) -> Put:
    """The clock of the node, by which agent and server tell people the time, is set."""

    @contextlib.contextmanager
    def put(world: World, aim: Aim) -> Iterator[None]:
        world.clock.write_bytes(struct.pack("<q", jump_s))
        yield

    return put


@contextlib.contextmanager
def pid_reused(world: World, aim: Aim) -> Iterator[None]:
    """The target is killed, and another process gets its number at once."""
    pid = world.pids("rank", aim.target)[0]
    with kill(world, aim):
        other = _with_pid(pid)
        try:
            assert other.pid == pid, "the number was taken by somebody else; run the cell again"
            yield
        finally:
            other.kill()
            other.wait()


def _with_pid(pid: int) -> "subprocess.Popen[bytes]":
    other = None
    for _ in range(50):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        other = subprocess.Popen(["sleep", "60"])
        if other.pid == pid:
            return other
        other.kill()
        other.wait()
    assert other is not None
    return other


_UNSEEN = frozenset({Cause.UNDETERMINED, Cause.INIT_INCOMPLETE})  # what may be said of a rank that nobody sees

FURTHER = (
    Fault(name="store.locked", who="store", put=store_locked, lasts_s=STOPPED_S),
    Fault(name="store.read_only", who="store", put=store_read_only, lasts_s=STOPPED_S, tells_twice=True, mounts=True),
    Fault(name="store.full", who="store", put=store_full, lasts_s=STOPPED_S),
    Fault(name="ring.torn", who="ring", put=ring_torn, lasts_s=2.0, blind=True),
    Fault(name="ring.garbage", who="ring", put=ring_garbage, lasts_s=2.0, blind=True, lost=True, blames=_UNSEEN),
    Fault(name="ring.deleted", who="ring", put=ring_deleted, lasts_s=2.0, blind=True, lost=True, blames=_UNSEEN),
    Fault(name="ring.truncated", who="ring", put=ring_truncated, lasts_s=2.0),
    Fault(name="shm.full", who="shm", put=shm_full, lasts_s=STOPPED_S, small_shm=True, mounts=True),
    Fault(name="descriptors.agent", who="agent", put=descriptors("agent"), lasts_s=STOPPED_S),
    Fault(name="descriptors.server", who="server", put=descriptors("server"), lasts_s=STOPPED_S, tells_twice=True),
    Fault(name="memory.agent", who="agent", put=memory("agent"), lasts_s=STOPPED_S),
    Fault(name="memory.server", who="server", put=memory("server"), lasts_s=STOPPED_S, tells_twice=True),
    Fault(name="frames.dropped", who="line", put=frames("dropped"), lasts_s=STOPPED_S),
    Fault(name="frames.doubled", who="line", put=frames("doubled"), lasts_s=STOPPED_S),
    Fault(name="frames.reordered", who="line", put=frames("reordered"), lasts_s=STOPPED_S),
    Fault(name="frames.cut", who="line", put=frames("cut"), lasts_s=STOPPED_S),
    Fault(name="clock.ahead", who="clock", put=clock(AHEAD_S), lasts_s=2.0, preload=True),
    Fault(name="clock.back", who="clock", put=clock(-AHEAD_S), lasts_s=2.0, preload=True),
    Fault(name="pid.reused", who="rank", put=pid_reused, lasts_s=2.0, blames=DEAD, deadly=True),
    Fault(name="agent.old", who="line", put=old_agent, lasts_s=1.0),
)
