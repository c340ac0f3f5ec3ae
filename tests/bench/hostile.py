"""Measures what somebody without a token can cost, and somebody with one: ours, a bare FastAPI on uvicorn, Prometheus.

Each server has 256 descriptors and a token or password. The same bytes go to each over loopback, for seconds; beside
them /healthz is asked a hundred times a second. Prometheus has no WebSocket: what opens one elsewhere posts a form.

    python -m tests.bench.hostile PORT    serves the bare FastAPI
"""

import base64
import contextlib
import http.client
import math
import os
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract import config, wire
from ncclwatch.contract.model.rank import GroupView, ProcessState, ProcessView, RankView
from tests.bench.processes import cpu_s, resident_mb
from tests.bench.row import Row
from tests.integration.prometheus import tool
from tests.ports import free_port

TOKEN = "Qm7wYx2LkT9sVb4NcR6hJd"
PASSWORD_HASH = "$2b$10$CwTycUXWue0Thq9StjUM0uJ8b8Yd0E9F4x0R7jY1oQ1y7zQm3v1yK"  # bcrypt, cost 10, as promtool advises
DESCRIPTORS = 256
LINES = 60
FRAME_BYTES = 16 * 1024 * 1024 - 1
SECONDS = 4.0
UNREAD = 20_000  # requests sent on one connection whose answers nobody reads
SILENT = 500
STACKS_BYTES = 15 * 1024 * 1024
FACTS_BYTES = 7_900_000
WORLD = 200_000  # ranks that the job is said to have
PATIENCE_S = 10.0  # for /healthz; then it is told as that

_OPENING = (
    f"GET {wire.AGENT_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server under attack."""

    name: str
    port: int
    pid: int
    health: str
    guarded: str  # a path for which a token is wanted
    websocket: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an attack cost."""

    memory_mb: float
    cpu_s: float
    health_ms: float  # 99 of 100 questions were answered within
    answers: float = 0.0  # of a second, where it is answers that are wanted


def rows() -> list[Row]:
    """Make all attacks on all servers."""
    found: dict[str, dict[str, Cost]] = {}
    with contextlib.ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory()))
        for name, serve in (("ours", _ours), ("uvicorn", _bare), ("Prometheus", _prometheus)):
            for attack, make in ATTACKS.items():
                with serve(directory) as target:
                    found.setdefault(attack, {})[name] = _cost(target, make)
    return [row for attack, costs in found.items() for row in _rows(attack, costs)]


def _rows(attack: str, costs: dict[str, Cost]) -> Iterator[Row]:
    ours = costs.pop("ours")
    for name, theirs in costs.items():
        yield Row(what=f"{attack}: memory", unit="MB", ours=ours.memory_mb, peer=name, theirs=theirs.memory_mb)
        yield Row(what=f"{attack}: CPU", unit="s", ours=ours.cpu_s, peer=name, theirs=theirs.cpu_s)
        yield Row(what=f"{attack}: /healthz p99", unit="ms", ours=ours.health_ms, peer=name, theirs=theirs.health_ms)
        if ours.answers or theirs.answers:
            yield Row(what=f"{attack}: answers", unit="/s", ours=ours.answers, peer=name, theirs=theirs.answers)


def _cost(target: Target, attack: Callable[[Target], float]) -> Cost:
    _health_s(target)
    memory, cpu, took_s, peak = resident_mb(target.pid), cpu_s(target.pid), list[float](), [0.0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            peak[0] = max(peak[0], resident_mb(target.pid))
            took_s.append(_health_s(target))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        answers = attack(target)
    finally:
        over.set()
        watching.join()
    slow = sorted(took_s)[math.ceil(len(took_s) * 0.99) - 1] if took_s else PATIENCE_S
    spent = cpu_s(target.pid) - cpu
    return Cost(memory_mb=max(0.0, peak[0] - memory), cpu_s=spent, health_ms=slow * 1e3, answers=answers)


def _health_s(target: Target) -> float:
    """Return how long a new connection waits for a sign of life."""
    began = time.perf_counter()
    asking = http.client.HTTPConnection("127.0.0.1", target.port, timeout=PATIENCE_S)
    try:
        asking.request("GET", target.health)
        asking.getresponse().read()
    except (OSError, http.client.HTTPException):
        return PATIENCE_S
    finally:
        asking.close()
    return min(PATIENCE_S, time.perf_counter() - began)


def _dial(target: Target) -> socket.socket:
    return socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S)


def _line(target: Target, token: str = "") -> socket.socket:
    """Return an open WebSocket, or on Prometheus a form that is being posted."""
    line = _dial(target)
    if target.websocket:
        shown = f"Authorization: Bearer {token}\r\n" if token else ""
        line.sendall(f"{_OPENING}{shown}\r\n".encode())
        line.recv(4096)
    else:
        line.sendall(
            b"POST /api/v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: %d\r\n\r\nquery=" % FRAME_BYTES
        )
    return line


def _head(size: int, first: int = 0x81) -> bytes:
    return struct.pack("!BBQ", first, 0xFF, size) + b"\0\0\0\0"


def _push(line: socket.socket, data: bytes, seconds: float = 1.0) -> None:
    """Send what the other side takes in time, and read nothing."""
    line.settimeout(seconds)
    with contextlib.suppress(OSError):
        line.sendall(data)


def _frames(target: Target) -> float:
    data = (_head(FRAME_BYTES) if target.websocket else b"") + b"x" * (FRAME_BYTES - 100)
    with contextlib.ExitStack() as lines:
        pushing = []
        for _ in range(LINES):
            with contextlib.suppress(OSError):
                line = lines.enter_context(_line(target))
                pushing.append(threading.Thread(target=_push, args=(line, data, 3.0)))
        for each in pushing:
            each.start()
        for each in pushing:
            each.join()
    return 0.0


def _pings(target: Target) -> float:
    pings = (b"\x89\xfd\0\0\0\0" + b"p" * 125) * 2000
    until = time.monotonic() + SECONDS
    with _line(target, TOKEN) as line:
        line.settimeout(SECONDS)
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                line.sendall(pings)
    return 0.0


def _unread(target: Target) -> float:
    data = f"GET {target.health} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() * UNREAD
    with contextlib.ExitStack() as lines:
        for _ in range(LINES):
            with contextlib.suppress(OSError):
                _push(lines.enter_context(_dial(target)), data, 0.05)
    return 0.0


def _silent(target: Target) -> float:
    with contextlib.ExitStack() as lines:
        for _ in range(SILENT):
            with contextlib.suppress(OSError):
                lines.enter_context(_dial(target))
        time.sleep(1.0)  # the time for which it is looked at
    return 0.0


def _guesses(target: Target) -> float:
    until, answers = time.monotonic() + SECONDS, [0] * 16

    def guess(number: int) -> None:
        asking = http.client.HTTPConnection("127.0.0.1", target.port, timeout=PATIENCE_S)
        while time.monotonic() < until:
            word = f"wrong-{number}-{answers[number]}"
            shown = base64.b64encode(f"admin:{word}".encode()).decode()
            scheme = f"Bearer {word}" if target.websocket else f"Basic {shown}"
            with contextlib.suppress(OSError, http.client.HTTPException):
                asking.request("GET", target.guarded, headers={"Authorization": scheme})
                answer = asking.getresponse()
                answer.read()
                answers[number] += answer.status == 401
        asking.close()

    guessing = [threading.Thread(target=guess, args=(number,)) for number in range(16)]
    for each in guessing:
        each.start()
    for each in guessing:
        each.join()
    return sum(answers) / SECONDS


def _as_agent(target: Target, messages: Callable[[int], bytes], pause_s: float = 0.0) -> float:
    """Send messages as an agent that speaks for 64 ranks, again and again. Whoever is let go comes again."""
    said = (
        wire.Hello(protocol=config.PROTOCOL, agent="x", host="h", version="1"),
        wire.Announce(
            index=0, job="j", instance="i", attempt=0, world_size=WORLD, ranks=tuple(range(64)), terminal=False
        ),
    )
    opening = b"".join(_head(len(data)) + data for data in map(wire.encode, said))
    until = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError), _line(target, TOKEN) as line:
            _push(line, opening)
            line.settimeout(2.0)
            while time.monotonic() < until:
                data = messages(number)
                line.sendall(_head(len(data)) + data)
                number += 1
                time.sleep(pause_s)
    return 0.0


def _stacks(target: Target) -> float:
    dumps = b",".join(
        [b'{"rank":0,"threads":[["T",[{"function":"f","file":"f.py","line":1}]]]}'] * (STACKS_BYTES // 72)
    )
    stacks = b'{"type":"stacks","index":0,"dumps":[' + dumps + b"]}"
    return _as_agent(target, lambda _: stacks)


def _facts(target: Target) -> float:
    ranks = b"0," * (FACTS_BYTES // 2) + b"0"
    facts = b'{"type":"facts","index":0,"alike":[[[' + ranks + b"],[[]]]]}"
    return _as_agent(target, lambda _: facts)


def _members(target: Target) -> float:
    """Send views of ranks in groups that are said to have all ranks but a few: some bytes for each group."""

    def views(number: int) -> bytes:
        view = RankView(
            rank=number % 64, local_rank=0, host="h", pid=1, device="", world_size=WORLD, local_world_size=64,
            attempt=0, process=ProcessView(state=ProcessState.RUNNING), pulse_age_s=0.0, initialised=True,
            groups=tuple(
                GroupView(
                    name=str(first), desc="", ranks=(), enqueued=1, completed=1, prefix_hash=1,
                    runs=((first, 1, WORLD - first),),
                )
                for first in range(4 * number % 1000, 4 * number % 1000 + 4)
            ),
        )  # fmt: skip
        return wire.encode(wire.Views(index=0, ranks=(view,)))

    return _as_agent(target, views, 0.002)


ATTACKS: dict[str, Callable[[Target], float]] = {
    f"{LINES} frames of 16 MB, no token": _frames,
    f"{LINES} x {UNREAD:,} requests, no answer read": _unread,
    f"{SILENT} silent connections": _silent,
    "guesses, 16 at a time": _guesses,
    "pings, no pong read, token": _pings,
    "stacks of 15 MB, token": _stacks,
    "facts of 7.9 MB, token": _facts,
    "views of groups of 200,000, token": _members,
}


@contextlib.contextmanager
def _running(command: list[str], directory: Path, ready: Callable[[], bool], **environ: str) -> Iterator[int]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**inherited, **environ}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command} does not serve: {(directory / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _ours(directory: Path) -> Iterator[Target]:
    port = free_port()
    command = [sys.executable, "-m", "ncclwatch_server", "--port", str(port), "--store", str(directory / "i.db")]
    listens = re.compile(r"listens on")
    ready = lambda: bool(listens.search((directory / "log").read_text()))  # noqa: E731 it is as short as that
    with _running(command, directory, ready, NCCLWATCH_TOKEN=TOKEN) as pid:
        yield Target(name="ours", port=port, pid=pid, health="/healthz", guarded="/api/v1/jobs")


@contextlib.contextmanager
def _bare(directory: Path) -> Iterator[Target]:
    port = free_port()
    with _running([sys.executable, "-m", "tests.bench.hostile", str(port)], directory, lambda: _answers(port)) as pid:
        yield Target(name="uvicorn", port=port, pid=pid, health="/healthz", guarded="/api/v1/jobs")


@contextlib.contextmanager
def _prometheus(directory: Path) -> Iterator[Target]:
    port = free_port()
    (directory / "prometheus.yml").write_text("scrape_configs: []\n")
    (directory / "web.yml").write_text(f"basic_auth_users:\n  admin: {PASSWORD_HASH}\n")
    command = [
        tool("prometheus"), f"--config.file={directory / 'prometheus.yml'}", f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={directory / 'tsdb'}", f"--web.config.file={directory / 'web.yml'}",
    ]  # fmt: skip
    with _running(command, directory, lambda: _answers(port)) as pid:
        yield Target(
            name="Prometheus", port=port, pid=pid, health="/-/healthy", guarded="/api/v1/targets", websocket=False
        )


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Serve what one would write first: a token is looked at, a message is JSON."""
    import hmac
    import json

    import uvicorn
    from fastapi import FastAPI, HTTPException, Request, WebSocket, WebSocketDisconnect

    app = FastAPI()

    def good(header: str) -> bool:
        return hmac.compare_digest(header.encode(), f"Bearer {TOKEN}".encode())

    @app.get("/healthz")
    async def healthz() -> str:
        return "here"

    @app.get("/api/v1/jobs")
    async def jobs(request: Request) -> list[str]:
        if not good(request.headers.get("authorization", "")):
            raise HTTPException(401)
        return []

    @app.websocket(wire.AGENT_PATH)
    async def agent(line: WebSocket) -> None:
        await line.accept()
        known = good(line.headers.get("authorization", ""))
        with contextlib.suppress(WebSocketDisconnect, ValueError):
            hello = json.loads(await line.receive_text())
            await line.send_text(json.dumps({"type": "welcome" if known else "refused", "to": hello.get("host")}))
            while known:
                json.loads(await line.receive_text())

    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
