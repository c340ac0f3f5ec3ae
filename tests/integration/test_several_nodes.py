"""Real torchrun on two nodes, each with its own network, host name and runtime directory. Nothing is configured."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster, read_until
from tests.integration.launch import PROGRAMS
from tests.integration.real_jobs import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Switch two nodes on, and leave nothing behind."""
    with Cluster(2, tmp_path) as found:
        yield found


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


@pytest.mark.long
def test_processes_of_a_script_that_says_nothing_of_its_nodes_find_each_other(cluster: Cluster) -> None:
    """`mp.spawn`, with the address and the ranks in the call of init_process_group alone."""
    address = f"{cluster.addresses[0]}:29533"
    jobs = [cluster.python(number, "spawned.py", str(number), "2", address) for number in (0, 1)]
    text = read_until(jobs[0], "  incident")
    assert text.count("ncclwatch: CRITICAL") == 1
    assert "rank 1 on node1 called barrier at spawned.py:" in " ".join(text.split())
    assert f"of job {address.replace(':', '-')}" in text


@pytest.mark.long
def test_run_on_each_node_leaves_the_job_to_the_server_of_its_agents(cluster: Cluster) -> None:
    job = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", cluster.addresses[0], "--master-port", "29544")
    runs = [
        cluster.nodes[number].start(
            "-m", "ncclwatch", "run", "--on-hang", "abort", "--", sys.executable, "-m", "torch.distributed.run", *job,
            "--node-rank", str(number), str(PROGRAMS / "hang.py"), **cluster.environment(number),
        )
        for number in (0, 1)
    ]  # fmt: skip
    said = read_until(runs[0], "  incident")
    assert said.count("ncclwatch: CRITICAL") == 1
    assert "rank 1 on node1 called barrier at hang.py:16" in " ".join(said.split())
    assert 0 not in [run.wait(60) for run in runs]  # their agents have done what --on-hang says
    assert all("ending the job (abort): the policy says so" in cluster.log(number) for number in (0, 1))
    cluster.end()
    assert runs[1].stderr is not None
    assert "CRITICAL" not in runs[1].stderr.read()


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


@pytest.mark.long
@pytest.mark.parametrize("early", [False, True], ids=["with its server", "before it has one"])
def test_a_job_that_torchrun_starts_again_is_one_job_though_its_nodes_count_other_attempts(
    cluster: Cluster, tmp_path: Path, *, early: bool
) -> None:
    """The rank of node1 fails: there it is attempt 1, on node0 torchrun counts none."""
    if early:
        (tmp_path / "fail").touch()
    jobs = [cluster.torchrun(number, "fails_once.py", str(tmp_path), restarts=2, name="night") for number in (0, 1)]
    if not early:
        until(lambda: "connected to" in cluster.log(1))
        (tmp_path / "fail").touch()
        assert "rank 1 on node1 ended with RuntimeError" in " ".join(read_until(jobs[0], "  incident").split())
    text = read_until(jobs[0], "  incident", 150)
    assert cluster.log(0).count("started a server") == 1
    assert "job night, attempt 1, of 2 ranks" in cluster.log(1)
    assert "attempt 1" not in cluster.log(0)
    assert text.count("ncclwatch: CRITICAL") == 1
    words = " ".join(text.split())
    assert "rank 1 on node1 called barrier at fails_once.py:" in words
    assert "certainty PROVEN" in words
    assert text.rstrip().endswith("of job night")


def test_one_variable_turns_it_off_and_each_node_says_what_to_do(cluster: Cluster) -> None:
    jobs = [cluster.torchrun(number, "hang.py", NCCLWATCH_SHARE="0") for number in (0, 1)]
    for job in jobs:
        assert "NCCLWATCH_SERVER in the job's environment on every node" in read_until(job, "ncclwatch: ")
    assert not [each for number in (0, 1) for each in cluster.processes(number) if "ncclwatch_server" in each.cmdline()]


@pytest.mark.long
@pytest.mark.parametrize("stopped", [0, 2])
def test_a_node_is_watched_whose_first_rank_was_stopped_before_it_knew_the_server(
    cluster: Cluster, stopped: int
) -> None:
    jobs = [cluster.torchrun(number, "stops_at_once.py", str(stopped), ranks=2) for number in (0, 1)]
    words = " ".join(read_until(jobs[0], "  incident").split())
    assert f"rank {stopped} on node{stopped // 2} is stopped by SIGSTOP" in words
