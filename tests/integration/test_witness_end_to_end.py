"""Real jobs, the real agent and server: what torch's Flight Recorder adds to a verdict, and what it takes from one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.launch import PROGRAMS, environment
from tests.zoo.forking.torch_once import forking_torchrun

pytestmark = [pytest.mark.integration, pytest.mark.timeout(280)]


def incident(how: str, count: int, tmp_path: Path) -> dict:
    """Run a job until its verdict, and return it as machines read it."""
    environ = environment(tmp_path / "runtime")
    del environ["NCCLWATCH_AGENT"]
    report = tmp_path / "report.json"
    job = forking_torchrun(PROGRAMS / "witness.py", count, (how,))
    command = ["--on-hang", "abort", "--report", str(report), "--", *job]
    ran = subprocess.run(
        [sys.executable, "-m", "ncclwatch", "run", *command], env=environ, capture_output=True, text=True, timeout=250
    )
    assert ran.returncode == 70, ran.stderr
    (found,) = [each for each in json.loads(report.read_text())["incidents"] if each["severity"] == "critical"]
    return found | {"told": " ".join(ran.stderr.split())}


def heard(found: dict) -> dict[int, str]:
    """Return what torch's Flight Recorder said of each rank."""
    return {each["rank"]: each["fact"] for each in found["evidence"] if each["source"] == "flight recorder"}


def test_both_witnesses_agree_on_a_rank_that_holds_the_gil(tmp_path: Path):
    found = incident("agree", 3, tmp_path)
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]
    assert (found["certainty"], found["disputed"]) == ("STALLED", False)
    inside = "has issued operation 3 (all_reduce) and not finished it"
    assert heard(found) == {0: inside, 1: "has issued up to operation 2 (all_reduce)", 2: inside}
    assert "disagrees" not in found["explanation"]


def test_the_flight_recorder_speaks_for_a_rank_whose_call_ncclwatch_cannot_see(tmp_path: Path):
    found = incident("past", 3, tmp_path)
    assert 2 in [culprit["rank"] for culprit in found["culprits"]], "ncclwatch sees calls on backend objects now"
    assert (found["certainty"], found["disputed"]) == ("STALLED", True)
    assert "torch's Flight Recorder disagrees: by its count rank 2 has issued operation 3 too" in found["explanation"]
    assert heard(found)[2] == "has issued up to operation 3 (all_reduce)"
    assert "disputed by a second source" in found["told"]
