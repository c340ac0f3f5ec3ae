"""A real job that hangs is started again where that cures it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.launch import PROGRAMS
from tests.integration.real_jobs import mine, runtime, until

__all__ = ["runtime"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


def test_a_job_with_a_stopped_rank_is_started_again_by_the_policy_and_goes_through(
    runtime: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ncclwatch", "run", "--on-hang", "policy", "--report", str(report), "--"),
            *(*torchrun, str(PROGRAMS / "tried_again.py"), str(tmp_path)),
        ],
        capture_output=True, text=True, timeout=140,
        env={k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
        | {"NCCLWATCH_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("through") == 2
    assert "ncclwatch: ending the command (restart): the policy says so for process_frozen" in done.stderr
    assert "ncclwatch: starting the command again, restart 1" in done.stderr
    assert done.stderr.count("ncclwatch: CRITICAL") == 1
    assert [each["cause"] for each in json.loads(report.read_bytes())["incidents"]] == ["process_frozen"]
    until(lambda: not mine(runtime))  # its agent stays a little
