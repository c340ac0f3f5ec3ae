"""Real torchrun on two nodes, ended and started again by hand at the same address. Nobody has configured anything."""

import time
from pathlib import Path
from subprocess import Popen

import pytest

from tests.integration.cluster import Cluster, read_until
from tests.integration.real_jobs import until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(180)]


def start(cluster: Cluster, number: int, steps: int) -> "Popen[str]":
    return cluster.torchrun(number, "trains.py", STEPS_TILL_HANG=str(steps))


@pytest.mark.parametrize("steps", [20, 0], ids=["of one that hung", "of one that trained"])
def test_each_run_has_its_verdict(tmp_path: Path, steps: int) -> None:
    with Cluster(2, tmp_path) as cluster:
        first = [start(cluster, number, steps) for number in (0, 1)]
        read_until(first[0], "  incident" if steps else "trains: step 20")
        for number in (0, 1):
            cluster.kill_training(number, "trains.py")
        second = [start(cluster, number, 20) for number in (0, 1)]
        said = read_until(second[0], "  incident")
    assert said.count("ncclwatch: CRITICAL") == 1
    assert "rank 1 on node1 called barrier at trains.py:" in " ".join(said.split())


def test_a_run_has_its_verdict_when_everything_of_the_one_before_was_killed(tmp_path: Path) -> None:
    """Its rings are left, and a new agent finds them beside those of the second run."""
    with Cluster(2, tmp_path) as cluster:
        first = [start(cluster, number, 20) for number in (0, 1)]
        read_until(first[0], "  incident")
        for number in (0, 1):
            cluster.kill(number)
        second = [start(cluster, number, 20) for number in (0, 1)]
        said = read_until(second[0], "  incident")
    assert said.count("ncclwatch: CRITICAL") == 1
    assert "rank 1 on node1 called barrier at trains.py:" in " ".join(said.split())


def test_nodes_may_be_started_again_one_after_the_other(tmp_path: Path) -> None:
    """Node 1 still has ranks of the first run, which wait, when the second one begins on node 0."""
    with Cluster(2, tmp_path) as cluster:
        first = [start(cluster, number, 20) for number in (0, 1)]
        read_until(first[0], "  incident")
        cluster.kill_training(0, "trains.py")
        second = start(cluster, 0, 20)
        cluster.kill_training(1, "trains.py")
        start(cluster, 1, 20)
        said = read_until(second, "  incident")
    assert said.count("ncclwatch: CRITICAL") == 1
    assert "rank 1 on node1 called barrier at trains.py:" in " ".join(said.split())


def test_one_node_may_be_started_again_with_its_agent_while_the_other_still_hangs(tmp_path: Path) -> None:
    """The new agent counts from one, and ranks of the first run on node 1 come to its server in between."""
    with Cluster(2, tmp_path) as cluster:
        first = [start(cluster, number, 20) for number in (0, 1)]
        read_until(first[0], "  incident")
        cluster.kill(0)
        second = start(cluster, 0, 20)
        until(lambda: "watching" in cluster.log(0).rpartition("is over")[2])
        time.sleep(5.0)  # as long as somebody needs to go to the other node
        cluster.kill_training(1, "trains.py")
        start(cluster, 1, 20)
        said = read_until(second, "  incident")
    assert "rank 1 on node1 called barrier at trains.py:" in " ".join(said.split())
    assert said.count("ncclwatch: CRITICAL") == 1
