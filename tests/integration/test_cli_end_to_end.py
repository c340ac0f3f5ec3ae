"""A real job that hangs, looked at with the command line: through the server, the agents and py-spy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.real_jobs import incidents, kill_all, runtime, server, torchrun, until
from tests.ports import free_port

__all__ = ["runtime"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]


def ncclwatch(url: str, *arguments: str) -> str:
    """Return what a command prints, once it has ended well."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NCCLWATCH")}
    done = subprocess.run(
        [sys.executable, "-m", "ncclwatch", *arguments, "--server", url],
        env=environ, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_hung_gloo_job_is_seen_through_its_agents_and_reported_in_one_file(runtime: Path, tmp_path: Path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    watching = server(port, tmp_path / "incidents.db")
    job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=url, NCCLWATCH_JOB="night", NCCLWATCH_TERMINAL="0")
    try:
        until(lambda: incidents(url))
        found = json.loads(ncclwatch(url, "stacks", "night", "--native"))
        merged = ncclwatch(url, "stacks", "--merged", "--text")
        (incident,) = json.loads(ncclwatch(url, "incidents"))["incidents"]
        page = tmp_path / "ticket.html"
        ncclwatch(url, "report", incident["id"], "-o", str(page))
    finally:
        job.kill()
        kill_all(runtime)  # the agent holds the job's pipes, and so do ranks that outlive their launcher
        watching.terminate()
        watching.wait(20)
        job.communicate(timeout=60)
    assert [(place["ranks"], place["words"].partition(" in main")[0]) for place in found["places"]] == [
        ([0], "in backward at hang.py:17"),
        ([1], "in barrier at hang.py:16"),
    ]
    assert found["unseen"] == []
    native = [stack for stack in found["stacks"] if "native frames" in stack["thread"]]
    assert native, found["notes"]
    assert any(not frame["file"].endswith(".py") for stack in native for frame in stack["frames"])
    assert "rank 1 in barrier at hang.py:16" in merged
    assert "main threads, outermost frame first:" in merged
    assert incident["summary"] in page.read_text().replace("&#39;", "'")
