"""A real job whose ranks wrap different models: DDP's crash is told by the parameter that differs, and who has it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.launch import PROGRAMS
from tests.integration.real_jobs import agent_environment, runtime

__all__ = ["runtime"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


def test_a_model_that_ddp_refuses_is_told_by_its_first_difference(runtime: Path, tmp_path: Path):
    report = tmp_path / "report.json"
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    done = subprocess.run(
        [
            sys.executable, "-m", "ncclwatch", "run", "--report", str(report), "--", sys.executable, *command,
            str(PROGRAMS / "unlike.py"), "3",
        ],
        env=agent_environment(runtime), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode not in (0, 2), done.stderr
    critical = [each for each in json.loads(report.read_text())["incidents"] if each["severity"] == "critical"]
    assert [each["cause"] for each in critical] == ["configuration_drift"], done.stderr
    assert [culprit["rank"] for culprit in critical[0]["culprits"]] == [2]
    assert "rank 2 wraps a different model with DDP than ranks 0-1" in critical[0]["summary"]
    assert "0.weight float32 101x8 on rank 2, 0.weight float32 100x8 on rank 0" in critical[0]["summary"]
