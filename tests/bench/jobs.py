"""Measures what thousands of jobs cost one server, and how soon it tells of one of them that hangs.

Each job is eight ranks on a node of its own, whose agent sends a digest a second over a line of its own, at a moment of
its own. One more job trains with them, until one of its ranks stays away from a collective.
"""

import contextlib
import json
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
from typing import Any
from urllib.request import urlopen

import msgspec

from ncclwatch.contract import wire
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training
from ncclwatch_server.simulation.run import cruising
from tests.bench.ingest.measure import serving
from tests.bench.ingest.sender import Way
from tests.bench.processes import cpu_s, resident_mb
from tests.bench.row import Row, at_most
from tests.integration.wire_fleet import WireFleet, healthy, stuck

LAYOUT = "dp=8"
FEW, MANY = 1000, 5000
SETTLE_S, STEADY_S, TOLD_S_MAX = 10.0, 12.0, 30.0
STEPS = 64  # sent in turn, one each second: more than a run has seconds
LATE = 3  # the rank that stays away
PERCENT_MAX, MEMORY_MB_MAX = {FEW: 30.0, MANY: 65.0}, {FEW: 200.0, MANY: 450.0}
AGE_S_MAX, TOLD_S = 2.5, 12.0

_RUNNING = re.compile(r'^ncclwatch_jobs\{state="running"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What many jobs cost a server."""

    percent: float  # of a core
    resident_mb: float
    watch_s: float  # the oldest that its watch and its pages were seen, by /healthz
    pages_s: float
    told_s: float  # from the fault to the open incident


def _load(port: int, jobs: int, seconds: float) -> bytes:
    layout = Layout.parse(LAYOUT)
    steps = [Fleet(cruising(layout, Training(), steps=STEPS + 3, at_step=step)) for step in range(1, STEPS)]
    digests = [fleet.digest(0, 0.0) for fleet in steps]
    said = steps[0].announce(0, "")
    announces = [wire.encode(msgspec.structs.replace(said, job=f"bench-{number:04d}")) for number in range(jobs)]
    return pickle.dumps((Way.SOCKET.value, port, announces, [digests] * jobs, 1.0, seconds))


@contextlib.contextmanager
def _training(folder: Path, port: int, jobs: int) -> Iterator["subprocess.Popen[str]"]:
    """Let so many jobs train; yields their sender when all are connected and send."""
    load = folder / "load"
    load.write_bytes(_load(port, jobs, SETTLE_S + STEADY_S + TOLD_S_MAX))
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.ingest.sender", str(load)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as sender:  # fmt: skip
        assert sender.stdin is not None and sender.stdout is not None
        try:
            if sender.stdout.readline().strip() != "ready":
                raise SystemExit(f"the sender of {jobs} jobs could not connect")
            sender.stdin.write("\n")
            sender.stdin.flush()
            yield sender
        finally:
            sender.kill()


def _asked(port: int, path: str) -> Any:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.loads(answer.read())


def _running(port: int) -> int:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        found = _RUNNING.search(answer.read().decode())
    return int(float(found.group(1))) if found else 0


def _ages_s(port: int) -> dict[str, float]:
    return {loop["name"]: loop["age_s"] for loop in _asked(port, "/healthz")["loops"]}


def cost(jobs: int) -> Cost:
    """Measure one server with so many jobs, the last of which hangs in the end."""
    layout, ages = Layout.parse(LAYOUT), list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as name, serving(Way.SOCKET, Path(name)) as (server, port):
        url = f"http://127.0.0.1:{port}"
        with (
            _training(Path(name), port, jobs - 1),
            WireFleet(url, healthy(layout), job="last", host="last{}".format) as last,
        ):
            time.sleep(SETTLE_S)  # all have just begun, and the first look at a job takes ten times longer
            before, began = cpu_s(server.pid), time.monotonic()
            while time.monotonic() - began < STEADY_S:
                ages.append(_ages_s(port))
                time.sleep(0.2)
            percent, memory = (cpu_s(server.pid) - before) / (time.monotonic() - began) * 100, resident_mb(server.pid)
            if (known := _running(port)) != jobs:
                raise SystemExit(f"the server watches {known} of {jobs} jobs")
            last.hang(stuck(layout, LATE))
            told_s = _told_s(port, time.monotonic())
    watch_s, pages_s = (max(each[loop] for each in ages) for loop in ("watch", "pages"))
    return Cost(percent=percent, resident_mb=memory, watch_s=watch_s, pages_s=pages_s, told_s=told_s)


def _told_s(port: int, since: float) -> float:
    """Return how long after a moment an incident of the last job is open, and no other."""
    while not (told := _asked(port, "/api/v1/incidents")):
        if time.monotonic() - since > TOLD_S_MAX:
            raise SystemExit(f"no incident within {TOLD_S_MAX:g} s")
        time.sleep(0.05)
    if [incident["job"] for incident in told] != ["last"]:
        raise SystemExit(f"other incidents than that of the last job: {told}")
    return time.monotonic() - since


def rows() -> list[Row]:
    """Measure with few and with many jobs."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = []
    for jobs in (FEW, MANY):
        seen, what = cost(jobs), f"{jobs:,} jobs of 8 ranks at 1 Hz"
        for unit, ours, bound in (
            ("% of a core", seen.percent, PERCENT_MAX[jobs]),
            ("MB resident", seen.resident_mb, MEMORY_MB_MAX[jobs]),
            ("s since the watch went round", seen.watch_s, AGE_S_MAX),
            ("s since the pages were painted", seen.pages_s, AGE_S_MAX),
            ("s from a fault to its incident", seen.told_s, TOLD_S),
        ):
            budget, met = at_most(bound, ours, unit)
            found.append(Row(what=what, unit=unit, ours=ours, budget=budget, met=met))
    return found
