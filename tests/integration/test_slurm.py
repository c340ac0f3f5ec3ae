"""Jobs of a real Slurm cluster of two nodes: tasks of srun, without torchrun."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster import read_until
from tests.integration.launch import PROGRAMS
from tests.integration.machine import ROOT
from tests.integration.network import INTERFACE
from tests.integration.real_jobs import until
from tests.integration.slurm import Slurm

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TASKS = ("-N2", "-n4", "--ntasks-per-node=2")
ENVIRON = {
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29533",
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
TOKEN = "0123456789abcdef0123456789abcdef"
_ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": sys.argv[2]})
print(urllib.request.urlopen(request).read().decode())
"""


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    with Slurm(2) as found:
        yield found


def ranks(program: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / program))


def test_the_terminal_of_srun_gets_the_verdict_with_nothing_configured(slurm: Slurm) -> None:
    job = slurm.start("srun", *TASKS, *ranks("srun_hang.py"), **ENVIRON)
    words = " ".join(read_until(job, "  incident").split())
    assert words.count("ncclwatch: CRITICAL") == 1
    assert "CRITICAL rank 2 on node1 called barrier at srun_hang.py:" in words
    assert "certainty PROVEN" in words
    assert "of job slurm-1.0" in words


def test_a_node_that_is_set_down_ends_the_job_and_nobody_is_blamed(slurm: Slurm) -> None:
    job = slurm.start("srun", *TASKS, *ranks("trains.py"), STEPS_TILL_HANG="0", **ENVIRON)
    read_until(job, "trains: step 60")
    slurm.command("scontrol", "update", "nodename=node1", "state=down", "reason=test")
    _, said = job.communicate(timeout=60)
    assert "Node failure on node1" in said
    assert "ncclwatch: " not in said
    until(lambda: not slurm.agents(), lambda: slurm.agents())


def batch(slurm: Slurm, *program: str, **more: str) -> Path:
    """Start a server for all jobs, and a batch job. Returns the file that gets the output of the job."""
    site = slurm.run / "job.env"  # what the TaskProlog of deploy/slurm gives to all jobs
    site.write_text(f"NCCLWATCH_SERVER=http://node0:8470\nNCCLWATCH_TOKEN={TOKEN}\n")
    serving = ("-m", "ncclwatch_server", "--host", "0.0.0.0", "--port", "8470", "--store", f"{slurm.run}/store.db")
    slurm.nodes[0].start(*serving, NCCLWATCH_TOKEN=TOKEN)
    until(lambda: ask(slurm, "jobs") == [])
    output = slurm.run / "output"
    submitted = slurm.start(
        "sbatch", *TASKS, "--open-mode=append", f"--output={output}", f"--wrap=srun {' '.join(program)}",
        NCCLWATCH_SITE_ENV=str(site), **ENVIRON, **more,
    )  # fmt: skip
    assert submitted.wait(60) == 0
    until(output.exists)
    return output


def ask(slurm: Slurm, path: str) -> list[dict]:
    url = f"http://127.0.0.1:8470/api/v1/{path}"
    return json.loads(slurm.nodes[0].ends("-c", _ASK, url, f"Bearer {TOKEN}").stdout or "null")


@pytest.mark.long
def test_a_job_that_is_requeued_is_another_attempt_of_it(slurm: Slurm) -> None:
    output = batch(slurm, *ranks("srun_hang.py"))
    until(lambda: "ncclwatch: CRITICAL rank 2 on node1" in output.read_text())
    slurm.command("scontrol", "requeue", "1")
    until(lambda: "trained to the end after 1 restarts" in output.read_text())
    (job,) = ask(slurm, "jobs")
    assert (job["id"], job["attempt"]) == ("slurm-1.0", 1)
    (incident,) = ask(slurm, "incidents")
    assert incident["state"] != "open"
    assert output.read_text().count("ncclwatch: CRITICAL") == 1


@pytest.mark.long
def test_agents_end_the_ranks_of_a_job_on_all_nodes_where_its_policy_says_so(slurm: Slurm) -> None:
    job = slurm.start("srun", *TASKS, *ranks("srun_hang.py"), NCCLWATCH_ON_HANG="policy", **ENVIRON)
    _, said = job.communicate(timeout=100)
    assert job.returncode != 0
    assert "ending the ranks (abort): the policy says so for rank_conditional_coll" in " ".join(said.split())
    until(lambda: not slurm.agents(), lambda: slurm.agents())


@pytest.mark.long
def test_a_job_is_requeued_without_the_node_of_the_rank_that_is_at_fault() -> None:
    with Slurm(3) as slurm:
        policy = slurm.run / "policy.toml"
        policy.write_text(f"""
            hook = "{ROOT / "deploy/hooks/slurm-requeue"}"
            [stalled]
            process_frozen = "restart_elsewhere"
            [stalled_for_s]
            process_frozen = 0
        """)
        output = batch(
            slurm, *ranks("srun_hang.py"), "stopped",
            NCCLWATCH_ON_HANG="policy", NCCLWATCH_HANG_POLICY=str(policy),
        )  # fmt: skip

        def described() -> str:
            return slurm.command("scontrol", "show", "job", "-o", "1")

        until(lambda: " ExcNodeList=node1 " in described(), output.read_text)
        until(lambda: "trained to the end" in output.read_text(), lambda: described() + output.read_text())
        assert "trained to the end after 1 restarts" in output.read_text()
        assert " NodeList=node[0,2] " in described()
        until(lambda: ask(slurm, "incidents")[0]["recovered_after_s"], lambda: ask(slurm, "incidents"))
