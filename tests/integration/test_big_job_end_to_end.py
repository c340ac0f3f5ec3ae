"""A job of 16,384 ranks through real rings, a real agent, the wire and a real server: the rank that errs is named.

Thirty-two ranks are processes on a real node, the others are reported by simulated ones. The mistake is in the group of
all ranks, whose list of members is the longest there is.
"""

import json
import os
import resource
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch_server.simulation.job.faults import RIGHT_CAUSES, Fault, FaultKind
from ncclwatch_server.simulation.job.layout import Axis, Layout
from ncclwatch_server.simulation.job.timeline import Manner, Timeline, plan
from tests.integration.fake_agent import until
from tests.integration.played_node import PlayedNode
from tests.integration.simulated_nodes import SimulatedJob, SimulatedNodes

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

LAYOUT = Layout.parse("tp=8,pp=8,dp=256,ep=8,node=32")
NODE, RANK = 35, 1_127
FILES = 4096


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Start a real server, and return its address."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, FILES)), hard))
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    command = [sys.executable, "-m", "ncclwatch_server", "--port", "0", "--store", str(tmp_path / "i.db")]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield process.stderr.readline().split()[-1]
        process.terminate()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hung() -> Timeline:
    """Return a job in which a rank leaves out the collective of all ranks that ends a step, from its beginning on."""
    timeline = plan(LAYOUT, Manner(), None, healthy_s=1.0, seed=1)
    course = timeline.stages[LAYOUT.stage(RANK)]
    step = len(course.steps) // timeline.steps
    at = step * (timeline.spans[-1].step + 2) - 1
    assert course.steps[at].axis is Axis.WORLD
    timeline.fault = Fault(kind=FaultKind.SKIP, rank=RANK, at=at)
    timeline.onset_s = 0.0
    timeline.prepare()
    return timeline


def asked(server: str, what: str) -> list[dict]:
    """Return what a server answers: its jobs or its incidents."""
    with urllib.request.urlopen(f"{server}/api/v1/{what}", timeout=30) as answer:
        return json.load(answer)


def critical(server: str) -> list[dict]:
    """Return the critical incidents."""
    return [each for each in asked(server, "incidents") if each["severity"] == "critical"]


def all_report(server: str) -> bool:
    """Whether every rank of the job was heard."""
    return [job["ranks_seen"] for job in asked(server, "jobs")] == [LAYOUT.world_size]


def test_the_rank_that_leaves_out_a_collective_of_16384_ranks_is_named(server: str, tmp_path: Path) -> None:
    timeline = hung()
    still = timeline.at(1.0)[0].still
    node = PlayedNode(tmp_path / "run", still, NODE, server=server, job="big")
    simulated = SimulatedJob(name="big", timeline=timeline, elsewhere=frozenset({NODE}))
    with node, SimulatedNodes(server, (simulated,)):
        until(lambda: all_report(server), 120.0, "all ranks heard")
        until(lambda: critical(server), 60.0, "a verdict")
        (said,) = critical(server)
    assert [culprit["rank"] for culprit in said["culprits"]] == [RANK]
    assert said["culprits"][0]["host"] == f"node{NODE:05d}"
    assert said["cause"] in {cause.value for cause in RIGHT_CAUSES[FaultKind.SKIP]}
    assert said["certainty"] == "PROVEN"
