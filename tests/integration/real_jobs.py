"""Real torchrun jobs with real agents and servers, for tests and benchmarks."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.launch import PROGRAMS, environment
from tests.zoo.forking.torch_once import forking_torchrun
from tests.zoo.jobs import Launcher

DEADLINE_S = 60.0


def until(found: Callable[[], object], seen: Callable[[], object] = lambda: "", within_s: float = DEADLINE_S) -> object:
    """Poll until something true comes back, and return it. A failure shows what `seen` returns."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {within_s} s: {found} {seen()}")


def incidents(url: str) -> list[dict]:
    """Return a server's incidents; none while it does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/incidents", timeout=2) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError):
        return []


def mine(runtime: Path) -> list[psutil.Process]:
    """Return the processes that carry this test's runtime directory in their environment or arguments."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            marks = [*process.environ().values(), *process.cmdline()]
            if any(str(runtime) in mark for mark in marks) and process.pid != os.getpid():
                found.append(process)
    return found


def running(runtime: Path, name: str) -> list[psutil.Process]:
    """Return this test's processes that run something. A process may end while it is looked at."""
    found = []
    for process in mine(runtime):
        with contextlib.suppress(psutil.Error, OSError):
            if name in " ".join(process.cmdline()):
                found.append(process)
    return found


def kill_all(runtime: Path, name: str = "") -> None:
    """Kill this test's processes, or those that run something. Once one is gone, others may end by themselves."""
    for process in running(runtime, name):
        with contextlib.suppress(psutil.Error):
            process.kill()


def agents(runtime: Path) -> list[psutil.Process]:
    """Return this test's agents."""
    return running(runtime, "ncclwatch_agent")


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Path]:
    """Give a runtime directory, and kill whatever still carries it afterwards."""
    place = tmp_path / "runtime"
    yield place
    kill_all(place)


def agent_environment(runtime: Path, **more: str) -> dict[str, str]:
    """Return the environment of a job that starts its agent."""
    environ = environment(runtime, **more)
    del environ["NCCLWATCH_AGENT"]
    return environ


def torchrun(
    runtime: Path, program: str, count: int, *arguments: str, launcher: Launcher = forking_torchrun, **more: str
) -> subprocess.Popen[str]:
    """Start a job with an agent; its output comes through pipes. Where its start is in question, use jobs.torchrun."""
    return subprocess.Popen(
        launcher(PROGRAMS / program, count, arguments),
        env=agent_environment(runtime, PYTHONUNBUFFERED="1", **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def server(port: int, store: Path) -> subprocess.Popen[str]:
    """Start a real server and wait until it listens."""
    read, write = os.pipe()
    command = ["--port", str(port), "--store", str(store), "--ready-fd", str(write)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ncclwatch_server", *command],
        pass_fds=(write,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    os.close(write)
    with os.fdopen(read) as ready:
        assert ready.readline().strip() == str(port)
    return process


def end(job: subprocess.Popen[str], runtime: Path) -> None:
    """Kill a job and whatever carries its runtime directory."""
    job.kill()
    kill_all(runtime)
    job.communicate(timeout=DEADLINE_S)
