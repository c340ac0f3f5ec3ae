"""One server and one agent, and small jobs that come and go on them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.integration.launch import environment
from tests.integration.real_jobs import kill_all
from tests.soak.gauges import read
from tests.soak.jobs import Ended, Plan, carried_out

ROOT = Path(__file__).parents[2]
AGENT_S_MAX = 30.0


class World:
    """A context: its processes end with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runtime = directory / "runtime"
        (directory / "store").mkdir(parents=True)
        self.runtime.mkdir()
        self.samples: list[dict[str, float]] = []

    @contextmanager
    def started(self) -> Iterator["World"]:
        """Start server and agent."""
        try:
            self._server = self._start_server()
            self._agent = self._start_agent()
            yield self
        finally:
            for process in (self._agent, self._server):
                process.terminate()
                process.wait(AGENT_S_MAX)
            kill_all(self.runtime)

    def _start_server(self) -> subprocess.Popen[str]:
        log = (self.directory / "server.log").open("ab")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.server", "0", f"sqlite:///{self.directory}/store/incidents.db"],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                env={k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH")},
            )  # fmt: skip
        assert process.stdout is not None
        self.url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        return process

    def _start_agent(self) -> subprocess.Popen[str]:
        with (self.directory / "agent.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ncclwatch_agent"],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True,
                env=environment(self.runtime, NCCLWATCH_SERVER=self.url),
            )  # fmt: skip

    def run(self, plans: Sequence[Plan], at_once: int, every: int) -> Iterator[Ended]:
        """Run jobs, so many at a time, and yield what came of each as they end; all gauges are read now and then."""
        began = time.monotonic()
        pool = ThreadPoolExecutor(at_once)
        running = [pool.submit(carried_out, plan, self.directory, self.url) for plan in plans]
        try:
            for number, each in enumerate(as_completed(running), 1):
                yield each.result()
                if number % every == 0:
                    self.samples.append({"jobs": float(number), "seconds": time.monotonic() - began} | self.gauges())
        finally:
            pool.shutdown(cancel_futures=True)

    def gauges(self) -> dict[str, float]:
        """Return what server and agent hold now."""
        return read(psutil.Process(self._server.pid), psutil.Process(self._agent.pid), self.directory, self.url)
