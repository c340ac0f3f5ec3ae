"""A site's own action is run once for a hang of a real job, before anything is ended, and within its deadline."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tests.integration.launch import PROGRAMS
from tests.integration.real_jobs import mine, runtime, server, until
from tests.ports import free_port

__all__ = ["runtime"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

# It counts the processes of the job when it begins and when it ends: a line for each run.
SCRIPT = """#!/bin/sh
count() { pgrep -fc "hang.py [$]MARK"; }
before=$(count)
call=$(cat)
[ -e "$(printf %s "$call" | sed 's/.*"capture":"[^:"]*:\\([^"]*\\)".*/\\1/')" ] && kept=true || kept=false
sleep SLEEP
printf '{"before":%s,"after":%s,"kept":%s,"uid":%s,"environ":"%s","call":%s}\\n' \\
  "$before" "$(count)" "$kept" "$(id -u)" "$NCCLWATCH_JOB" "$call" >> RAN
echo drained
"""


class Site:
    """A policy whose hook writes down what it has read."""

    def __init__(self, directory: Path, sleep: str, **settings: str) -> None:
        self.directory = directory
        self.ran, self.hook, self.policy = (directory / name for name in ("ran", "on-hang", "hangs.toml"))
        text = SCRIPT.replace("[$]MARK", str(directory)).replace("RAN", str(self.ran)).replace("SLEEP", sleep)
        self.hook.write_text(text)
        self.hook.chmod(0o755)
        said = "".join(f"{name} = {value}\n" for name, value in settings.items())
        self.policy.write_text(f'hook = "{self.hook}"\n{said}[proven]\nother = "abort"\n')

    @property
    def runs(self) -> list[Any]:
        """Return what it was given, a run at a time."""
        return [json.loads(line) for line in self.ran.read_text().splitlines()] if self.ran.exists() else []

    def environment(self) -> dict[str, str]:
        """Return what a job has in its environment."""
        return {"NCCLWATCH_ON_HANG": "policy", "NCCLWATCH_HANG_POLICY": str(self.policy)}


def check(site: Site, *, processes: int, hosts: tuple[str, ...]) -> dict[str, Any]:
    """Check that it ran once while the whole job was there, and with what; returns what it has read."""
    (run,) = site.runs
    assert (run["before"], run["after"], run["kept"], run["uid"]) == (processes, processes, True, os.geteuid())
    call: dict[str, Any] = run["call"]
    assert (call["schema"], call["action"], call["attempt"], call["culprits_total"]) == (1, "abort", 0, 1)
    assert call["reason"] == "the policy says so for rank_conditional_collective"
    assert run["environ"] == call["job"] == call["incident"]["job"]
    assert call["host"] in hosts
    incident = call["incident"]
    assert (incident["cause"], incident["certainty"]) == ("rank_conditional_collective", "PROVEN")
    assert (incident["severity"], incident["world_size"], incident["one_of"]) == ("critical", 2, False)
    assert incident["summary"].startswith("rank 1 ") and incident["advice"]
    (culprit,) = incident["culprits"]
    assert (culprit["rank"], culprit["host"]) == (1, hosts[-1])
    assert culprit["call_site"]["file"].endswith("hang.py")
    return call


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Switch two nodes on, and leave nothing behind."""
    with Cluster(2, tmp_path) as found:
        yield found


@pytest.mark.long
def test_of_two_nodes_one_runs_it_and_both_end_their_ranks_afterwards(cluster: Cluster, tmp_path: Path) -> None:
    site = Site(tmp_path, "4")
    jobs = [
        cluster.torchrun(number, "hang.py", str(tmp_path), restarts=3, **site.environment()) for number in (0, 1)
    ]  # fmt: skip
    said = [job.communicate(timeout=100) for job in jobs]
    assert 0 not in [job.returncode for job in jobs], said
    call = check(site, processes=4, hosts=("node0", "node1"))
    logs = [cluster.log(number) for number in (0, 1)]
    assert sum(f"running hook {site.hook} (abort; incident {call['incident']['id']})" in log for log in logs) == 1
    assert sum(f"hook {site.hook} finished with 0 in 4." in log for log in logs) == 1
    assert all("ending the job (abort)" in log for log in logs)
    assert any(f"ncclwatch: hook {site.hook} finished with 0 in 4." in err for _, err in said)
    assert sum(": drained" in log for log in logs) == 1


def launched(runtime: Path, *command: str, **more: str) -> tuple[int, str]:
    """Run a job of two ranks to its end; returns its exit code and what it has written to standard error."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", *command, "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=3"),
            *(f"--master-port={free_port()}", str(PROGRAMS / "hang.py"), str(runtime.parent)),
        ],
        capture_output=True, text=True, timeout=140,
        env={k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
        | {"NCCLWATCH_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1"} | more,
    )  # fmt: skip
    until(lambda: not mine(runtime))  # the agent stays a little
    return done.returncode, done.stderr


def test_one_that_hangs_is_killed_and_the_job_is_ended(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLWATCH_CAPTURES", str(tmp_path / "kept"))
    site = Site(tmp_path, "600", hook_timeout_s="1")
    watching = server(port := free_port(), tmp_path / "incidents.db")
    try:
        code, said = launched(runtime, **site.environment(), NCCLWATCH_SERVER=f"http://127.0.0.1:{port}")
    finally:
        watching.kill()
        watching.wait()
    assert code != 0
    killed = f"ncclwatch: hook {site.hook} did not end within 1 s (hook_timeout_s), and was killed"
    assert said.count(killed) == said.count("ncclwatch: ending the job (abort)") == 1, said
    assert said.index("ncclwatch: running hook") < said.index(killed) < said.index("ncclwatch: ending the job")
    assert site.runs == []


def test_ncclwatch_run_runs_it_before_it_ends_the_command(runtime: Path, tmp_path: Path) -> None:
    site = Site(tmp_path, "2")
    options = ("ncclwatch", "run", "--on-hang", "policy", "--policy", str(site.policy), "--", sys.executable, "-m")
    code, said = launched(runtime, *options, NCCLWATCH_CAPTURES=str(tmp_path / "kept"), NCCLWATCH_HOST="here")
    assert code == 70, said
    check(site, processes=4, hosts=("here",))
    running, finished = (
        f"ncclwatch: running hook {site.hook} (abort; incident ",
        f"ncclwatch: hook {site.hook} finished",
    )
    assert said.count(running) == said.count(f"{finished} with 0 in 2.") == 1
    assert said.index(running) < said.index(finished) < said.index("ncclwatch: ending the command (abort)")


def test_a_hook_that_is_missing_is_told_before_anything_starts(tmp_path: Path) -> None:
    site = Site(tmp_path, "0")
    site.hook.unlink()
    command = ("run", "--on-hang", "policy", "--policy", str(site.policy), "--", "touch", str(tmp_path / "begun"))
    done = subprocess.run([sys.executable, "-m", "ncclwatch", *command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, (tmp_path / "begun").exists()) == (2, False)
    assert done.stderr == (
        f"ncclwatch: the hook of the policy cannot be run here: {site.hook}: No such file or directory\n"
    )
