"""Nodes for real torchrun jobs: each with its own network, host name and runtime directory, behind one switch."""

import contextlib
import os
import subprocess
import time
from pathlib import Path
from subprocess import Popen
from types import TracebackType

from psutil import Error, Process, wait_procs

from tests.integration.launch import PROGRAMS, environment
from tests.integration.machine import Machine, needs_root
from tests.integration.network import INTERFACE, Network
from tests.integration.real_jobs import DEADLINE_S, mine


class Cluster:
    """Some nodes, called node0, node1 and so on. `up_s`: how much longer than node0 each has been up, in seconds."""

    def __init__(self, nodes: int, runtime: Path, *, up_s: int = 0) -> None:
        needs_root()
        self._stack = contextlib.ExitStack()
        self._runtime = runtime
        self.network = self._stack.enter_context(Network())
        self.nodes = [
            self._stack.enter_context(Machine(f"node{number}", up_s=number * up_s)) for number in range(nodes)
        ]
        self.addresses = [self.network.join(node) for node in self.nodes]

    def torchrun(
        self, number: int, program: str, *arguments: str, port: int = 29511, ranks: int = 1, ahead_s: int = 0,
        restarts: int = 0, name: str = "", **more: str,
    ) -> "Popen[str]":  # fmt: skip
        """Start a node's part of a job of so many ranks on each node. The node's clock is ahead by so much.

        One with a `name` is elastic: its nodes meet again after a failure of any of them.
        """
        if ahead_s:
            more |= {"LD_PRELOAD": str(self._clock()), "CLOCK_AHEAD_S": str(ahead_s)}
        static = ("--node-rank", str(number), "--master-addr", self.addresses[0], "--master-port", str(port))
        elastic = (
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.addresses[0]}:{port}", "--rdzv-id", name,
            "--rdzv-conf", f"is_host={number == 0}", "--local-addr", self.addresses[number],
        )  # fmt: skip
        return self.nodes[number].start(
            "-m", "torch.distributed.run", "--nnodes", str(len(self.nodes)), "--nproc-per-node", str(ranks),
            *(elastic if name else static), "--max-restarts", str(restarts), str(PROGRAMS / program), *arguments,
            **self.environment(number, **more),
        )  # fmt: skip

    def python(self, number: int, program: str, *arguments: str, **more: str) -> "Popen[str]":
        """Start a node's part of a job whose script starts its processes itself."""
        environ = self.environment(number, **more)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environ.pop(name, None)
        return self.nodes[number].start(str(PROGRAMS / program), *arguments, **environ)

    def _clock(self) -> Path:
        """Return a library to be loaded first, with which a program reads a clock that is wrong."""
        library = self._runtime / "wrong_clock.so"
        if not library.exists():
            source = PROGRAMS / "wrong_clock.c"
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
        return library

    def environment(self, number: int, **more: str) -> dict[str, str]:
        """Return what a node's part of a job has in its environment."""
        runtime = self._runtime / f"node{number}"
        environ = environment(runtime, GLOO_SOCKET_IFNAME=INTERFACE, PYTHONUNBUFFERED="1", **more)
        del environ["NCCLWATCH_AGENT"]
        return environ

    def processes(self, number: int) -> list[Process]:
        """Return the processes of a node's part of the job, its agent included."""
        return mine(self._runtime / f"node{number}")

    def log(self, number: int) -> str:
        """Return what the agents of a node have written down."""
        return "".join(path.read_text() for path in (self._runtime / f"node{number}").rglob("agent.log"))

    def kill(self, number: int) -> None:
        """Kill all of them at once."""
        _kill(self.processes(number))

    def kill_training(self, number: int, program: str) -> None:
        """Kill a node's part of a job, and wait until it has ended. Its agent goes on."""
        training = [each for each in self.processes(number) if any(program in word for word in _command(each))]
        _kill(training)
        wait_procs(training, timeout=DEADLINE_S)

    def take_the_power(self, number: int) -> None:
        """Let a node go down: its last packets reach nobody."""
        self.network.cut.add(number)
        self.kill(number)

    def end(self) -> None:
        """Kill everything."""
        _kill(mine(self._runtime))

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._stack.close()


def _command(process: Process) -> list[str]:
    with contextlib.suppress(Error):
        return process.cmdline()
    return []


def _kill(processes: list[Process]) -> None:
    for process in processes:
        with contextlib.suppress(Error):  # it has ended by itself
            process.kill()


def read_until(job: "Popen[str]", wanted: str, seconds: float = DEADLINE_S) -> str:
    """Return what a job says on standard error until a line begins so, which takes so long at most."""
    assert job.stderr is not None
    os.set_blocking(job.stderr.fileno(), True)
    lines: list[str] = []
    deadline = time.monotonic() + seconds
    while not any(line.startswith(wanted) for line in lines):
        line = job.stderr.readline()
        assert line and time.monotonic() < deadline, "".join(lines)
        lines.append(line)
    return "".join(lines)
