"""Run each server under the same digests, and tell what a digest costs it in CPU time.

16,384 ranks on 2,048 nodes in Megatron's layout (tensor, pipeline, data, expert: eight groups a rank); a digest tells
of eight ranks. Saturated: 64 connections send as fast as they are taken, eight digests in a write. Paced: 2,048
connections send one a second each, at moments of their own. Ours judges meanwhile, its peers only keep the rows.
"""

import contextlib
import json
import os
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from ncclwatch.contract import digests, wire
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training
from ncclwatch_server.simulation.run import cruising
from ncclwatch_server.state.digest_rows import GROUP_DTYPE, RANK_DTYPE
from tests.bench.ingest.sender import Way
from tests.bench.processes import cpu_s, resident_mb
from tests.bench.row import Row, at_most

LAYOUT = "tp=8,pp=8,dp=256,ep=8"
STEPS = (5, 6)
LINES_SATURATED = 64
SATURATED_S, PACED_S = 6.0, 20.0
DRAIN_S = 60.0
PERCENT_MAX, MEMORY_MB_MAX, RATIO_MIN = 12.0, 150.0, 14.0
_COUNTED = re.compile(r"^ncclwatch_(?:server_)?digests_received_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cost:
    """What digests cost a server."""

    digests: int
    us: float  # of CPU for one
    percent: float  # of a core
    resident_mb: float
    late_s: float  # the most that the sender was late


@contextlib.contextmanager
def serving(way: Way, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a server, and tell it and its port."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    reader, writer = os.pipe()
    if way is Way.SOCKET:
        store, ready = str(folder / "i.db"), str(writer)
        command = [sys.executable, "-m", "ncclwatch_server", "--port", "0", "--store", store, "--ready-fd", ready]
    elif way is Way.POST:
        command = [sys.executable, "-m", "tests.bench.ingest.posted"]
    else:
        program = folder / "floor"
        source = Path(__file__).with_name("epoll_floor.c")
        subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
        command = [str(program)]
    log = folder / "log"
    with log.open("wb") as errors, subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=writer, stderr=errors, pass_fds=(writer,)
    ) as server:  # fmt: skip
        os.close(writer)
        with os.fdopen(reader) as told:
            line = told.readline().strip()
        if not line:
            raise SystemExit(f"{command} did not start: {log.read_text()}")
        try:
            yield server, int(line)
        except BaseException:
            print(log.read_text(), file=sys.stderr)
            raise
        finally:
            server.kill()


def _payload(nodes: int, way: Way) -> tuple[list[bytes], list[list[bytes]]]:
    layout = Layout.parse(LAYOUT)
    fleets = [Fleet(cruising(layout, Training(), steps=8, at_step=step)) for step in STEPS]
    announces = [wire.encode(fleets[0].announce(node, "bench")) for node in range(nodes)]
    digests = [[fleet.digest(node, 0.0) for fleet in fleets] for node in range(nodes)]
    if way is Way.POST:
        digests = [[_as_json(each) for each in some] for some in digests]
    return announces, digests


def _as_json(digest: bytes) -> bytes:
    _, ranks, groups = digests.split_digest(digest)
    rows = {
        name: [dict(zip(dtype.names or (), row, strict=True)) for row in np.frombuffer(data, dtype).tolist()]
        for name, data, dtype in (("ranks", ranks, RANK_DTYPE), ("groups", groups, GROUP_DTYPE))
    }
    return json.dumps({"job": "bench", **rows}, separators=(",", ":")).encode()


def cost(way: Way, *, every_s: float, seconds: float, lines: int) -> Cost:
    """Return what digests cost one kind of server."""
    announces, digests = _payload(lines, way)
    with tempfile.TemporaryDirectory() as name, serving(way, Path(name)) as (server, port):
        load = Path(name) / "load"
        load.write_bytes(pickle.dumps((way.value, port, announces, digests, every_s, seconds)))
        with subprocess.Popen(
            [sys.executable, "-m", "tests.bench.ingest.sender", str(load)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as sender:  # fmt: skip
            assert sender.stdin is not None and sender.stdout is not None
            if sender.stdout.readline().strip() != "ready":
                raise SystemExit(f"the sender of {way.value} could not connect")
            before, began = cpu_s(server.pid), time.monotonic()
            sender.stdin.write("\n")
            sender.stdin.flush()
            done = json.loads(sender.stdout.readline())
            if way is Way.SOCKET:
                _drained(port, done["sent"])
            used, took = cpu_s(server.pid) - before, time.monotonic() - began
            memory = resident_mb(server.pid)
            sender.stdin.close()
    return Cost(done["sent"], used / done["sent"] * 1e6, used / took * 100, memory, done["late_s"])


def _drained(port: int, sent: int) -> None:
    """Wait until the server has taken what was sent."""
    until = time.monotonic() + DRAIN_S
    while True:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            found = _COUNTED.search(answer.read().decode())
        taken = float(found.group(1)) if found else 0.0
        if taken >= sent:
            return
        if time.monotonic() > until:
            raise SystemExit(f"the server has taken {taken:.0f} of {sent} digests")
        time.sleep(0.2)


def rows() -> list[Row]:
    """Measure all three servers saturated and paced, one after the other."""
    nodes = Layout.parse(LAYOUT).world_size // 8
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    full = {way: cost(way, every_s=0.0, seconds=SATURATED_S, lines=LINES_SATURATED) for way in Way}
    paced = {way: cost(way, every_s=1.0, seconds=PACED_S, lines=nodes) for way in Way}
    ours, post, floor = full[Way.SOCKET], full[Way.POST], full[Way.FLOOR]
    at_rate, post_at_rate, floor_at_rate = paced[Way.SOCKET], paced[Way.POST], paced[Way.FLOOR]
    percent, percent_met = at_most(PERCENT_MAX, at_rate.percent, "%")
    memory, memory_met = at_most(MEMORY_MB_MAX, at_rate.resident_mb, "MB")
    us = "µs of CPU"
    return [
        Row(what="a digest, saturated", unit=us, ours=ours.us, peer="FastAPI + pydantic POST", theirs=post.us,
            budget=f">= {RATIO_MIN:g} x less", met=post.us >= RATIO_MIN * ours.us),
        Row(what="a digest, saturated", unit=us, ours=ours.us, peer="C epoll + memcpy", theirs=floor.us),
        Row(what="a digest, 2,048 lines at 1 Hz", unit=us, ours=at_rate.us, peer="FastAPI + pydantic POST",
            theirs=post_at_rate.us),
        Row(what="a digest, 2,048 lines at 1 Hz", unit=us, ours=at_rate.us, peer="C epoll + memcpy",
            theirs=floor_at_rate.us),
        Row(what="16,384 ranks at 1 Hz", unit="% of a core", ours=at_rate.percent, peer="FastAPI + pydantic POST",
            theirs=post_at_rate.percent, budget=percent, met=percent_met),
        Row(what="16,384 ranks at 1 Hz", unit="MB resident", ours=at_rate.resident_mb, peer="FastAPI + pydantic POST",
            theirs=post_at_rate.resident_mb, budget=memory, met=memory_met),
    ]  # fmt: skip
