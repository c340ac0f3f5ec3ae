"""Agents act on hangs for the owner of a job, with real torchrun. Nobody watches but them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster
from tests.integration.command_line import ncclwatch
from tests.integration.launch import PROGRAMS
from tests.integration.real_jobs import incidents, mine, runtime, server, until
from tests.ports import free_port

__all__ = ["runtime"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


def launched(
    runtime: Path, on_hang: str, program: str, *arguments: str, restarts: int, meet: str = "", **more: str
) -> tuple[int, str, str]:
    """Run a job of two ranks to its end; returns its exit code and what it has written."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--max-restarts={restarts}"),
            *(meet or f"--master-port={free_port()}", str(PROGRAMS / program), *arguments),
        ],
        capture_output=True, text=True, timeout=140,
        env={k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
        | {"NCCLWATCH_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1", "NCCLWATCH_ON_HANG": on_hang} | more,
    )  # fmt: skip
    until(lambda: not mine(runtime))  # the agent stays a little
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("meet", "more"),
    [
        pytest.param("", {}, id="at-one-address"),
        # Its ranks meet at another port in each attempt.
        pytest.param(
            "--standalone", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, id="at-other-ports", marks=pytest.mark.long
        ),
    ],
)
def test_a_job_is_started_again_by_torchrun_once_and_ended_when_it_hangs_in_the_same_way(
    meet: str, more: dict[str, str], runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLWATCH_CAPTURES", str(tmp_path / "captures"))
    url = f"http://127.0.0.1:{(port := free_port())}"
    watching = server(port, tmp_path / "incidents.db")
    try:
        code, out, said = launched(
            *(runtime, "restart", "tried_again.py", str(tmp_path), "always"),
            restarts=3, meet=meet, NCCLWATCH_SERVER=url, **more,
        )  # fmt: skip
        first, again = sorted(incidents(url), key=lambda incident: incident["opened_at"])
        cost = json.loads(ncclwatch("report", "--period", "1h", "--json", server=url).stdout)
    finally:
        watching.kill()
        watching.wait()
    assert code != 0
    assert "through" not in out
    assert said.count("so that torchrun starts them again, up to 3 times more (restart)") == 1
    assert said.count("ncclwatch: ending the job (abort): it hangs as it did before a restart (process_frozen)") == 1
    assert sorted(path.name for path in tmp_path.glob("attempt*")) == ["attempt00", "attempt01"]
    captures = re.findall(r"capture: [^:]+:(\S+\.zip)\)", said)
    assert len(captures) == 2
    for path in captures:
        (found,) = json.loads(read_again(path))["incidents"]
        assert (found["cause"], [each["rank"] for each in found["culprits"]]) == ("process_frozen", [1])
    assert first["recovered_after_s"] > first["onset_to_open_s"], "the second attempt went on, up to the same step"
    assert (first["came_back_as"], again["came_back_from"]) == (again["id"], first["id"])
    assert again["recovered_after_s"] is None
    assert [each["cause"] for each in cost["causes"]] == ["process_frozen"]
    total = cost["total"]
    assert (total["hangs"], total["jobs"], total["came_back"], total["ended"]) == (2, 1, 1, 1)
    assert total["lost_s"] == pytest.approx(first["lost_s"] + again["lost_s"], abs=0.2)
    assert total["saved_s"] > 2 * 1700, "gloo would have waited for 30 minutes"


def read_again(capture: str) -> str:
    done = subprocess.run([sys.executable, "-m", "ncclwatch", "analyze", capture], capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_job_that_hangs_once_goes_through(runtime: Path, tmp_path: Path) -> None:
    code, out, said = launched(runtime, "policy", "tried_again.py", str(tmp_path), restarts=1)
    assert (code, out.count("through")) == (0, 2), said
    assert said.count("so that torchrun starts them again, once more (restart): the policy says so for process_fr") == 1


@pytest.mark.long
def test_a_job_that_has_saved_nothing_since_a_restart_is_ended(runtime: Path, tmp_path: Path) -> None:
    code, out, said = launched(runtime, "policy", "tried_again.py", str(tmp_path), "then the first", restarts=3)
    assert (code != 0, out.count("through")) == (True, 0)
    assert said.count("ncclwatch: ending the job (abort): it has saved nothing since it was started again") == 1
    assert sorted(path.name for path in tmp_path.glob("attempt*")) == ["attempt00", "attempt01"]


@pytest.mark.long
def test_a_hang_that_a_restart_does_not_cure_ends_the_job_though_torchrun_would_start_it_again(runtime: Path) -> None:
    code, _, said = launched(runtime, "policy", "hang.py", restarts=3)
    assert code != 0
    assert said.count("ncclwatch: CRITICAL") == 1
    assert said.count("ncclwatch: ending the job (abort): the policy says so for rank_conditional_collective") == 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Switch two nodes on, and leave nothing behind."""
    with Cluster(2, tmp_path) as found:
        yield found


@pytest.mark.long
def test_all_nodes_start_again_when_a_rank_of_one_is_stopped(cluster: Cluster, tmp_path: Path) -> None:
    jobs = [
        cluster.torchrun(
            number, "tried_again.py", str(tmp_path), ranks=2, restarts=1,
            NCCLWATCH_ON_HANG="restart", NCCLWATCH_RUNTIME_DIR=str(tmp_path / f"node{number}"),
        )
        for number in (0, 1)
    ]  # fmt: skip
    said = [job.communicate(timeout=140) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert [out.count("through") for out, _ in said] == [2, 2]
    assert all("ending the ranks, so that torchrun starts them again" in cluster.log(number) for number in (0, 1))


@pytest.mark.long
def test_on_all_nodes_torchrun_is_ended_where_a_restart_cures_nothing(cluster: Cluster) -> None:
    """Whichever agent acts first, the ranks of the other node may end for the loss of theirs before it does."""
    jobs = [cluster.torchrun(number, "hang.py", restarts=3, NCCLWATCH_ON_HANG="policy") for number in (0, 1)]
    said = [job.communicate(timeout=100) for job in jobs]
    assert 0 not in [job.returncode for job in jobs], said
    for number in (0, 1):
        assert "ending the job (abort): the policy says so for rank_conditional_coll" in cluster.log(number)
        assert "attempt 1" not in cluster.log(number)


def test_a_rank_that_waits_in_python_saves_when_the_job_hangs(runtime: Path, tmp_path: Path) -> None:
    code, out, said = launched(runtime, "", "saves_in_a_hang.py", str(tmp_path), "raise", restarts=0)
    assert code != 0
    assert said.count("ncclwatch: raising HangError in ranks that run Python (raise; incident ") == 1
    assert [line for line in out.splitlines() if "saved: host_stall by (1,) of " in line], out
    assert [path.name for path in tmp_path.glob("*.pt")] == ["checkpoint1.pt"]  # gloo's wait cannot be interrupted
    assert "note1.txt" in _notes(tmp_path)  # torchrun may end rank 0 before its next pulse


@pytest.mark.long
@pytest.mark.parametrize(("on_hang", "attached"), [("", ""), ("report", "raise")])
def test_without_being_asked_nothing_is_raised(runtime: Path, tmp_path: Path, on_hang: str, attached: str) -> None:
    """The job hangs until the timeout of its group, long after the verdict."""
    code, out, said = launched(runtime, on_hang, "saves_in_a_hang.py", str(tmp_path), attached, restarts=0)
    assert code != 0
    assert said.count("ncclwatch: CRITICAL rank 1 has made no progress") == 1
    assert "Timed out waiting" in said
    assert ("raising" in said, "saved" in out, list(tmp_path.glob("*.pt"))) == (False, False, [])
    assert _notes(tmp_path) == ["note0.txt", "note1.txt"]


def _notes(directory: Path) -> list[str]:
    """Return the files in which ranks have noted the verdict."""
    return sorted(path.name for path in directory.glob("note*") if "rank 1 has made no progress" in path.read_text())
