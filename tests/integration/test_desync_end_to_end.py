"""A real job whose ranks fall out of step without a hang is warned of while it goes on."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.launch import PROGRAMS
from tests.zoo.forking.torch_once import forking_torchrun

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def test_a_silent_desync_is_a_warning_and_never_a_hang(tmp_path: Path):
    report, stop, errors = tmp_path / "report.json", tmp_path / "stop", tmp_path / "stderr"
    command = [
        *(sys.executable, "-m", "ncclwatch", "run", "--on-hang", "abort", "--report", str(report), "--"),
        *forking_torchrun(PROGRAMS / "desync.py", 2),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    environment |= {"STOP_FILE": str(stop), "NCCLWATCH_RUNTIME_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with errors.open("wb") as stderr:
        job = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        deadline = time.monotonic() + 120.0
        while b"ncclwatch: WARNING" not in errors.read_bytes() and time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.1)
        stop.touch()
        assert job.wait(60) == 0, errors.read_text()
    finally:
        job.kill()
        job.wait()
    (incident,) = json.loads(report.read_text())["incidents"]
    assert (incident["severity"], incident["certainty"], incident["cause"]) == (
        "warning",
        "PROVEN",
        "signature_mismatch",
    )
    assert incident["op"] == "all_reduce"
    assert incident["first_divergence"]["seq"] == 21  # two all_reduces a step, from 1 on
