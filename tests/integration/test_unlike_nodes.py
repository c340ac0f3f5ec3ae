"""Real torchrun on nodes that differ, share jobs, or are lost. Nobody has configured anything."""

from pathlib import Path

import pytest

from tests.integration.cluster import Cluster, read_until
from tests.integration.real_jobs import until

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(240)]
HOUR_S = 3600
CALLED = "called barrier at trains.py:25 under `if step == last and dist.get_rank() == 1`"


@pytest.mark.parametrize("ahead", [0, 1])
def test_clocks_that_are_an_hour_apart_change_nothing(tmp_path: Path, ahead: int) -> None:
    """Nor does it that one node was started two hours after the other."""
    with Cluster(2, tmp_path, up_s=2 * HOUR_S) as cluster:
        jobs = [
            cluster.torchrun(number, "trains.py", ahead_s=HOUR_S if number == ahead else 0, STEPS_TILL_HANG="20")
            for number in (0, 1)
        ]
        said = read_until(jobs[0], "  incident")
    words = " ".join(said.split())
    assert f"CRITICAL rank 1 on node1 {CALLED}" in words
    assert "certainty PROVEN" in words
    assert words.count("CRITICAL") == 1


def test_a_node_that_was_started_at_another_time_is_lost(tmp_path: Path) -> None:
    with Cluster(2, tmp_path, up_s=2 * HOUR_S) as cluster:
        jobs = [cluster.torchrun(number, "trains.py", STEPS_TILL_HANG="0") for number in (0, 1)]
        until(lambda: all("connected to" in cluster.log(number) for number in range(len(jobs))))
        read_until(jobs[0], "trains: step 60")
        cluster.take_the_power(1)
        words = " ".join(read_until(jobs[0], "  incident").split())
    assert "CRITICAL rank 1 is on node1, which has not answered for " in words


@pytest.mark.parametrize("hears", [0, 1])
def test_a_node_of_which_packets_arrive_one_way_only_is_lost(tmp_path: Path, hears: int) -> None:
    with Cluster(2, tmp_path) as cluster:
        jobs = [cluster.torchrun(number, "trains.py", STEPS_TILL_HANG="0") for number in (0, 1)]
        until(lambda: all("connected to" in cluster.log(number) for number in range(len(jobs))))
        read_until(jobs[0], "trains: step 60")
        cluster.network.refuses = lambda source, target, frame: target != hears
        words = " ".join(read_until(jobs[0], "  incident").split())
    assert "CRITICAL rank 1 is on node1, which has not answered for " in words
    assert "cut off from the network" in words


def test_two_jobs_on_the_same_nodes_have_a_verdict_each(tmp_path: Path) -> None:
    with Cluster(2, tmp_path) as cluster:
        first = [cluster.torchrun(number, "trains.py", STEPS_TILL_HANG="20") for number in (0, 1)]
        second = [cluster.torchrun(number, "hang.py", port=29522) for number in (0, 1)]
        one, other = (" ".join(read_until(job[0], "  incident").split()) for job in (first, second))
    assert f"CRITICAL rank 1 on node1 {CALLED}" in one
    assert "CRITICAL rank 1 on node1 called barrier at hang.py:16" in other
    assert one.count("CRITICAL") == other.count("CRITICAL") == 1


def test_four_nodes_of_two_ranks(tmp_path: Path) -> None:
    with Cluster(4, tmp_path) as cluster:
        jobs = [cluster.torchrun(number, "trains.py", ranks=2, STEPS_TILL_HANG="20") for number in range(4)]
        words = " ".join(read_until(jobs[0], "  incident").split())
    assert f"CRITICAL rank 1 on node0 {CALLED}" in words
    assert "ranks 0,2-7 wait for it in all_reduce" in words


def test_of_four_nodes_of_two_ranks_the_one_without_power_is_named(tmp_path: Path) -> None:
    with Cluster(4, tmp_path) as cluster:
        jobs = [cluster.torchrun(number, "trains.py", ranks=2, STEPS_TILL_HANG="0") for number in range(4)]
        until(lambda: all("connected to" in cluster.log(number) for number in range(len(jobs))))
        read_until(jobs[0], "trains: step 60")
        cluster.take_the_power(2)
        words = " ".join(read_until(jobs[0], "  incident").split())
    assert "CRITICAL ranks 4-5 are on node2, which has not answered for " in words
