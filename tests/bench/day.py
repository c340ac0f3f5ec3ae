"""Measures a day of a cluster in minutes: jobs come, train for two seconds and go, one in a hundred hangs.

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
from tests.bench.processes import cpu_s, resident_mb
from tests.bench.row import Row, at_most
from tests.integration.fake_agent import FakeAgent
from tests.integration.server_process import ServerProcess

JOBS, AT_ONCE, EVERY = 10_000, 48, 100  # jobs in all, at one moment, and of which one hangs
RANKS = tuple(range(8))
TRAINS_S, HANGS_S = 2.0, 12.0
WARM = JOBS // 5  # jobs after which memory is looked at first
GROWS_KB_MAX = 8.0  # for each job from then on, as long as it stays listed
TICK_S_MAX = 0.25
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
        hangs = number % EVERY == EVERY - 1
        with FakeAgent(
            self._server.url, job=f"team-{number % 7}/run-{number}", instance=str(number), ranks=RANKS,
            world_size=len(RANKS), agent=f"a{number}", host=f"node{number % 500}", user=f"user{number % 20}",
            labels=f"team=t{number % 7},run={number}",
        ) as agent:  # fmt: skip
            time.sleep(TRAINS_S)
            if hangs:
                agent.hang(*RANKS[1:])
                time.sleep(HANGS_S)
            how = Ending(kind="signalled", signal=15) if hangs else Ending(kind="exited", exit_code=0)
            for rank in RANKS:
                agent.end(rank, how)
            agent.gone()
        with self._lock:
            self._done += 1
            return self._done


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
        found: dict[str, float] = {}
        for figure, value in figures(server):
            found[figure] = found.get(figure, 0.0) + value
        incidents = [i for i in server.get("/api/v1/incidents?limit=2000").json() if i["severity"] == "critical"]
        wrong = [i["job"] for i in incidents if int(i["job"].rpartition("-")[2]) % EVERY != EVERY - 1]
        told = len({i["job"] for i in incidents} - set(wrong))
    grows_kb = (day.memory_mb[JOBS] - day.memory_mb[WARM]) * 1000 / (JOBS - WARM)
    print(
        day.memory_mb,
        {key: value for key, value in found.items() if "refused" in key or "jobs" in key or "tick" in key},
    )
    made = []
    for what, unit, ours, bound in (
        ("memory a job, from one in five on", "kB", grows_kb, GROWS_KB_MAX),
        ("jobs that hung and were not told", "jobs", float(JOBS // EVERY - told), 0.0),
        ("jobs that did not hang and were told", "jobs", float(len(wrong)), 0.0),
        ("CPU of the server", "ms a job", used / JOBS * 1000, 50.0),
        ("the whole day", "s", took_s, 3600.0),
    ):
        budget, met = at_most(bound, ours, unit)
        made.append(Row(what=f"{JOBS:,} jobs: {what}", unit=unit, ours=ours, budget=budget, met=met))
    return made
