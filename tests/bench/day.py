"""Measures half a day of a cluster in minutes: jobs come, train for two seconds and go, one in a hundred hangs.

Each job is eight ranks on a node of its own, whose agent speaks the real wire to a real server with its store. What a
server keeps of jobs that are over must not grow with the number of all that there were.
"""

import re
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ncclwatch.contract.model.rank import Ending
from ncclwatch_server.simulation.job.layout import Layout
from tests.bench.processes import cpu_s, resident_mb
from tests.bench.row import Row, at_most
from tests.integration.fake_agent import FakeAgent
from tests.integration.server_process import ServerProcess
from tests.integration.wire_fleet import WireFleet, healthy, stuck

JOBS, AT_ONCE, EVERY = 5_000, 48, 100  # jobs in all, at one moment, and of which one hangs
RANKS = tuple(range(8))
TRAINS_S, TOLD_S_MAX = 2.0, 60.0
LAYOUT = Layout.parse("dp=8")
LATE = 3  # the rank that stays away
WARM = JOBS // 5  # jobs after which memory is looked at first
GROWS_KB_MAX = 64.0  # for each job, which stays listed for an hour after its end
_FIGURE = re.compile(r"^(ncclwatch_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Day:
    """Runs the jobs against one server."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._done = 0
        self._lock = threading.Lock()
        self.memory_mb: dict[int, float] = {}  # by number of jobs that are over

    def run(self) -> None:
        """Let all jobs come and go. Raises what the first one raised that failed."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in pool.map(self._job, range(JOBS)):
                if done % WARM == 0:
                    self.memory_mb[done] = resident_mb(self._server.process.pid)

    def _job(self, number: int) -> int:
        name = f"team-{number % 7}/run-{number}"
        if number % EVERY == EVERY - 1:
            self._hangs(name)
        else:
            self._trains(number, name)
        with self._lock:
            self._done += 1
            return self._done

    def _hangs(self, name: str) -> None:
        with WireFleet(self._server.url, healthy(LAYOUT), job=name, host=f"{name}-{{}}".format) as fleet:
            time.sleep(TRAINS_S)
            fleet.hang(stuck(LAYOUT, LATE))
            began = time.monotonic()
            while not self._server.get(f"/api/v1/incidents?job={name}").json():
                if time.monotonic() - began > TOLD_S_MAX:
                    return
                time.sleep(0.5)

    def _trains(self, number: int, name: str) -> None:
        with FakeAgent(
            self._server.url, job=name, instance=str(number), ranks=RANKS,
            world_size=len(RANKS), agent=f"a{number}", host=f"node{number % 500}", user=f"user{number % 20}",
            labels=f"team=t{number % 7},run={number}",
        ) as agent:  # fmt: skip
            time.sleep(TRAINS_S)
            for rank in RANKS:
                agent.end(rank, Ending(kind="exited", exit_code=0))
            agent.gone()


def figures(server: ServerProcess) -> Iterator[tuple[str, float]]:
    """Yield the figures of a server by their names."""
    for name, value in _FIGURE.findall(server.get("/metrics").text):
        yield name, float(value)


def rows() -> list[Row]:
    """Measure one day."""
    with (
        tempfile.TemporaryDirectory() as name,
        ServerProcess(Path(name), program="tests.integration.pages_server") as server,
    ):
        began, used = time.monotonic(), cpu_s(server.process.pid)
        day = Day(server)
        day.run()
        took_s, used = time.monotonic() - began, cpu_s(server.process.pid) - used
        refused = sum(value for name, value in figures(server) if name == "ncclwatch_jobs_refused_total")
        incidents = [i for i in server.get("/api/v1/incidents?limit=2000").json() if i["severity"] == "critical"]
        wrong = [i["job"] for i in incidents if int(i["job"].rpartition("-")[2]) % EVERY != EVERY - 1]
        told = len({i["job"] for i in incidents} - set(wrong))
    grows_kb = (day.memory_mb[JOBS] - day.memory_mb[WARM]) * 1000 / (JOBS - WARM)
    made = []
    for what, unit, ours, bound in (
        ("memory a job, from one in five on", "kB", grows_kb, GROWS_KB_MAX),
        ("jobs that were refused", "jobs", refused, 0.0),
        ("jobs that hung and were not told", "jobs", float(JOBS // EVERY - told), 0.0),
        ("jobs that did not hang and were told", "jobs", float(len(wrong)), 0.0),
        ("CPU of the server", "ms a job", used / JOBS * 1000, 50.0),
        ("the whole day", "s", took_s, 3600.0),
    ):
        budget, met = at_most(bound, ours, unit)
        made.append(Row(what=f"{JOBS:,} jobs: {what}", unit=unit, ours=ours, budget=budget, met=met))
    return made
