"""Real torchrun on two nodes, ended and started again by hand at the same address. Nobody has configured anything."""

from pathlib import Path
from subprocess import Popen

import pytest

from tests.integration.cluster import Cluster, read_until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(180)]


def start(cluster: Cluster, number: int, steps: int) -> "Popen[str]":
    return cluster.torchrun(number, "trains.py", STEPS_TILL_HANG=str(steps))


@pytest.mark.parametrize("steps", [20, 0], ids=["of one that hung", "of one that trained"])
@pytest.mark.parametrize("agents_too", [False, True], ids=["its ranks", "everything"])
def test_each_run_has_its_verdict(tmp_path: Path, steps: int, agents_too: bool) -> None:
    """Where everything of the first run was killed its rings are left, and a new agent finds them beside the others."""
    with Cluster(2, tmp_path) as cluster:
        first = [start(cluster, number, steps) for number in (0, 1)]
        read_until(first[0], "  incident" if steps else "trains: step 20")
        for number in (0, 1):
            cluster.kill(number) if agents_too else cluster.kill_training(number, "trains.py")
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


def test_the_agent_of_one_node_may_be_started_again_between_two_runs(tmp_path: Path) -> None:
    """It counts runs from one again, and the agent of the other node does not."""
    with Cluster(2, tmp_path) as cluster:
        first = [start(cluster, number, 20) for number in (0, 1)]
        read_until(first[0], "  incident")
        cluster.kill(0)
        second = start(cluster, 0, 20)
        cluster.kill_training(1, "trains.py")
        start(cluster, 1, 20)
        said = read_until(second, "  incident")
    assert "rank 1 on node1 called barrier at trains.py:" in " ".join(said.split())
    assert said.count("ncclwatch: CRITICAL") == 1
