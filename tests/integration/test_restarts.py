"""A real job that hangs is started again where that cures it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclwatch.contract.on_hang.default_policy import DEFAULT_POLICY
from ncclwatch_server.evidence.inspection import with_members
from ncclwatch_server.incidents.capture_file import read
from ncclwatch_server.judge import judge
from tests.integration.launch import PROGRAMS
from tests.integration.real_jobs import mine, runtime, until

__all__ = ["runtime"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


@pytest.mark.long
def test_a_job_with_a_stopped_rank_is_started_again_by_the_policy_and_goes_through(
    runtime: Path, tmp_path: Path
) -> None:
    at_once = tmp_path / "at_once.toml"
    at_once.write_text(DEFAULT_POLICY.replace("process_frozen = 15", "process_frozen = 0"))
    report, captures = tmp_path / "report.json", tmp_path / "captures"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ncclwatch", "run", "--on-hang", "policy", "--policy", str(at_once)),
            *("--report", str(report), "--"),
            *(*torchrun, str(PROGRAMS / "tried_again.py"), str(tmp_path)),
        ],
        capture_output=True, text=True, timeout=140,
        env={k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
        | {"NCCLWATCH_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1", "NCCLWATCH_CAPTURES": str(captures)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("through") == 2
    assert "ncclwatch: ending the command (restart): the policy says so for process_frozen" in done.stderr
    assert "ncclwatch: starting the command again, restart 1" in done.stderr
    assert done.stderr.count("ncclwatch: CRITICAL") == 1
    (incident,) = json.loads(report.read_bytes())["incidents"]
    assert incident["cause"] == "process_frozen"
    assert incident["recovered_after_s"] > incident["onset_to_open_s"], "the second attempt went on"
    assert incident["came_back_as"] == ""
    assert (incident["lost_s"], incident["world_size"], incident["gpus"]) == (incident["recovered_after_s"], 2, 0)
    _is_captured(captures, done.stderr)
    until(lambda: not mine(runtime))  # its agent stays a little


def _is_captured(captures: Path, told: str) -> None:
    """Check that there is one capture, taken before the job was ended, and that it leads to the same verdict."""
    (path,) = captures.iterdir()
    assert told.index(f"ncclwatch analyze {path}") < told.index("ncclwatch: ending the command")
    with path.open("rb") as file:
        capture = read(file)
    (saved,) = (each for each in capture.report.incidents if each.severity == "critical")
    again = judge(with_members(capture.snapshot))[0]
    assert (again.cause, again.culprits) == (saved.cause, saved.culprits)
    assert (again.cause.value, again.summary) == ("process_frozen", saved.summary)
    analyzed = subprocess.run(
        [sys.executable, "-m", "ncclwatch", "analyze", "--text", str(path)], capture_output=True, text=True, timeout=60
    )
    assert analyzed.returncode == 0, analyzed.stderr
    assert analyzed.stdout.count("ncclwatch: CRITICAL") == 1
    assert "process_frozen" in analyzed.stdout
