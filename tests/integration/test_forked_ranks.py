"""Ranks that are forked children of a process that has attached: watched, each under its own number."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.launch import PROGRAMS
from tests.integration.real_jobs import agent_environment, runtime
from tests.ports import free_port

__all__ = ["runtime"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def hung(runtime: Path, *command: str) -> dict:
    """Run a training until it hangs, and return the one incident that is told."""
    report = runtime.parent / "report.json"
    environ = agent_environment(runtime, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    done = subprocess.run(
        [sys.executable, "-m", "ncclwatch", "run", "--on-hang", "abort", "--report", str(report), "--", *command],
        env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 70, done.stderr
    told = json.loads(report.read_text())
    assert told["world_size"] == 2
    (incident,) = told["incidents"]
    return incident


@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["own children", "under torchrun"])
def test_a_rank_that_a_process_forked_after_attach_is_named(runtime: Path, launcher: tuple[str, ...]):
    arguments = ("launched",) if launcher else ()
    incident = hung(runtime, sys.executable, *launcher, str(PROGRAMS / "forks.py"), *arguments)
    assert incident["cause"] == "rank_conditional_collective"
    assert [each["rank"] for each in incident["culprits"]] == [1]
    assert incident["culprits"][0]["call_site"]["function"] == "train"
    assert incident["victims"] == [0]
