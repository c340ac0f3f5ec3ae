"""Real torchrun on two nodes, of which one is lost, or cut off. Nobody has configured anything."""

import re
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster, read_until
from tests.integration.network import ports_of
from tests.integration.real_jobs import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def server_port(cluster: Cluster) -> int:
    """Return where the job's server takes agents of other nodes, as the agent of node0 has written down."""
    found = until(lambda: re.search(r"other nodes reach its server at port (\d+)", cluster.log(0)))
    assert isinstance(found, re.Match)
    return int(found[1])


def test_a_node_without_power_is_named(tmp_path: Path) -> None:
    """Where the ranks waited for each other before, as on a machine that is busy with other things, after 60 s."""
    with Cluster(2, tmp_path) as cluster:
        jobs = [cluster.torchrun(number, "trains.py", STEPS_TILL_HANG="0") for number in (0, 1)]
        until(lambda: "connected to" in cluster.log(1))
        read_until(jobs[0], "trains: step 20")
        cluster.take_the_power(1)
        words = " ".join(read_until(jobs[0], "  incident", 120).split())
    assert words.count("ncclwatch: CRITICAL") == 1
    assert "CRITICAL rank 1 is on node1, which has not answered for " in words
    assert "and rank 0 waits for it in all_reduce at trains.py:" in words
    assert "node1 has lost power, has crashed, or is cut off from the network. Or node0 is cut off" in words
    assert "culprit rank 1, host node1" in words
    assert "certainty STALLED" in words


@pytest.mark.long
def test_who_is_cut_off_from_the_server_alone_is_not_lost(tmp_path: Path) -> None:
    """Training goes on without the server for longer than a lost node is waited for, then hangs of something else."""
    with Cluster(2, tmp_path) as cluster:
        jobs = [cluster.torchrun(number, "trains.py", STEPS_TILL_HANG="400") for number in (0, 1)]
        until(lambda: "connected to" in cluster.log(1))
        port = server_port(cluster)
        cluster.network.refuses = lambda source, target, frame: port in ports_of(frame)
        said = read_until(jobs[0], "trains: step 390")
        cluster.network.refuses = lambda source, target, frame: False
        said += read_until(jobs[0], "  incident")
    assert said.count("ncclwatch: CRITICAL") == 1
    assert "culprit   rank 1, host node1" in said
    assert "node_lost" not in said
    assert "barrier" in said


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_node_that_another_one_reaches_is_up(tmp_path: Path) -> None:
    """Its rank hangs while nothing comes through to the server: nobody sees why, and it is not called lost."""
    with Cluster(3, tmp_path) as cluster:
        jobs = [cluster.torchrun(number, "trains.py", STEPS_TILL_HANG="100") for number in range(3)]
        until(lambda: "connected to" in cluster.log(1) and "connected to" in cluster.log(2))
        port = server_port(cluster)
        cluster.network.refuses = lambda source, target, frame: 1 in (source, target) and port in ports_of(frame)
        words = " ".join(read_until(jobs[0], "  incident", 240).split())
    assert "CRITICAL" not in words
    assert "WARNING rank 1 is on node1, which has not answered the server for " in words
    assert "and ranks 0,2 wait for it in all_reduce at trains.py:" in words
    assert re.search("This server gets no answer from node1, but node[02] does: node1 is up", words)


@pytest.mark.long
def test_another_node_takes_over_from_the_one_of_the_server_and_names_it(tmp_path: Path) -> None:
    with Cluster(2, tmp_path) as cluster:
        jobs = [cluster.torchrun(number, "trains.py", STEPS_TILL_HANG="0") for number in (0, 1)]
        until(lambda: "node1 stands by for the server on node0" in cluster.log(1))
        cluster.take_the_power(0)
        words = " ".join(read_until(jobs[1], "  incident").split())
    assert "ncclwatch: the server of this job, on node0, has not answered for " in words
    assert "the one that stood by on node1 takes over" in words
    assert "CRITICAL rank 0 is on node0, which has not answered for " in words
    assert "node0 has lost power, has crashed, or is cut off from the network. Or node1 is cut off" in words
    assert "culprit rank 0, host node0" in words


@pytest.mark.long
def test_after_a_cut_all_nodes_are_at_the_first_server_again(tmp_path: Path) -> None:
    with Cluster(2, tmp_path) as cluster:
        jobs = [cluster.torchrun(number, "trains.py", STEPS_TILL_HANG="600") for number in (0, 1)]
        until(lambda: "node1 stands by for the server on node0" in cluster.log(1))
        cluster.network.cut.add(0)
        assert "Or node0 is cut off" in " ".join(read_until(jobs[0], "  incident").split())
        assert "CRITICAL rank 0 is on node0" in read_until(jobs[1], "  incident")
        cluster.network.cut.clear()
        until(lambda: "going back to the server" in cluster.log(1))
        text = read_until(jobs[0], "  incident")
    assert "culprit   rank 1, host node1" in text
    assert "barrier" in text
