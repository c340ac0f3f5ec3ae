"""Real torchrun on two nodes, each with its own network, host name and runtime directory. Nothing is configured."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest
from psutil import Error, Process

from tests.integration.launch import PROGRAMS, environment
from tests.integration.machine import Machine, needs_root
from tests.integration.real_jobs import DEADLINE_S, mine

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ADDRESSES = ("10.92.0.1", "10.92.0.2")


@dataclass
class Cluster:
    """Two nodes with a cable between them."""

    nodes: tuple[Machine, ...]
    runtime: Path

    def torchrun(self, number: int, program: str, **more: str) -> "Popen[str]":
        """Start a node's part of a job of one rank on each node."""
        environ = environment(self.runtime / f"node{number}", GLOO_SOCKET_IFNAME="cable", PYTHONUNBUFFERED="1", **more)
        del environ["NCCLWATCH_AGENT"]
        return self.nodes[number].start(
            "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number),
            "--master-addr", ADDRESSES[0], "--master-port", "29511", str(PROGRAMS / program), **environ,
        )  # fmt: skip

    def processes(self, number: int) -> list[Process]:
        """Return the processes of a node's part of the job, its agent included."""
        return mine(self.runtime / f"node{number}")

    def end(self) -> None:
        """Kill everything."""
        for process in mine(self.runtime):
            with contextlib.suppress(Error):  # it has ended by itself
                process.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Lay the cable, and leave nothing behind."""
    needs_root()
    with Machine("node0") as first, Machine("node1") as second:
        first.wire_to(second, *ADDRESSES)
        found = Cluster((first, second), tmp_path)
        yield found
        found.end()


def read_until(job: "Popen[str]", wanted: str) -> str:
    """Return what a job says on standard error until a line begins so."""
    assert job.stderr is not None
    os.set_blocking(job.stderr.fileno(), True)
    lines: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while not any(line.startswith(wanted) for line in lines):
        line = job.stderr.readline()
        assert line and time.monotonic() < deadline, "".join(lines)
        lines.append(line)
    return "".join(lines)


def test_with_nothing_configured_the_terminal_of_rank_0_gets_the_verdict_of_all_nodes(cluster: Cluster) -> None:
    jobs = [cluster.torchrun(number, "hang.py") for number in (0, 1)]
    text = read_until(jobs[0], "  incident")
    words = " ".join(text.split())
    assert text.count("ncclwatch: CRITICAL") == 1
    assert "rank 1 on node1 called barrier at hang.py:16 under `if step == 30 and dist.get_rank() == 1`" in words
    assert "culprit rank 1, host node1" in words
    assert "PROVEN" in words
    cluster.end()
    assert jobs[1].stderr is not None
    assert "CRITICAL" not in jobs[1].stderr.read()


def test_an_agent_that_was_killed_is_followed_by_another_and_all_nodes_come_to_its_server(cluster: Cluster) -> None:
    jobs = [cluster.torchrun(number, "hang.py") for number in (0, 1)]
    read_until(jobs[0], "  incident")
    agents = [each for each in cluster.processes(0) if "ncclwatch_agent" in each.cmdline()]
    servers = [child for agent in agents for child in agent.children() if "ncclwatch_server" in child.cmdline()]
    assert len(agents) == len(servers) == 1
    agents[0].kill()  # its server ends with it: else the other node would go on talking to that one
    # The new server has kept nothing: it judges anew what both nodes tell it.
    text = read_until(jobs[0], "  incident")
    assert "culprit   rank 1, host node1" in text


def test_one_variable_turns_it_off_and_each_node_says_what_to_do(cluster: Cluster) -> None:
    jobs = [cluster.torchrun(number, "hang.py", NCCLWATCH_SHARE="0") for number in (0, 1)]
    for job in jobs:
        assert "NCCLWATCH_SERVER in the job's environment on every node" in read_until(job, "ncclwatch: ")
    assert not [each for number in (0, 1) for each in cluster.processes(number) if "ncclwatch_server" in each.cmdline()]
