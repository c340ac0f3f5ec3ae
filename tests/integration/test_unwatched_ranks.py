"""A rank that takes itself out of the watch is shown so, and the others are judged without it."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.integration.real_jobs import end, runtime, server, torchrun, until
from tests.ports import free_port

__all__ = ["runtime"]  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_a_rank_that_has_detached_is_shown_so_on_the_page_in_the_api_and_in_metrics(
    runtime: Path, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    watching = server(port, tmp_path / "incidents.db")
    job = torchrun(runtime, "detaches.py", 2, NCCLWATCH_SERVER=url, NCCLWATCH_JOB="job")
    try:

        def states() -> list[str]:
            try:
                return [each["state"] for each in json.loads(text(f"{url}/api/v1/jobs/job/ranks"))["ranks"]]
            except OSError:
                return []  # it has not come yet

        until(lambda: states() in (["moving", "detached"], ["working", "detached"]), states)
        sentence = "rank 1 is not watched any more, and a wait for it is not judged"
        until(lambda: sentence in text(f"{url}/jobs/job"), states)
        until(lambda: 'ncclwatch_ranks{job_id="job",state="detached"} 1.0' in text(f"{url}/metrics"), states)
    finally:
        end(job, runtime)
        watching.kill()
        watching.wait()


def test_others_that_hang_are_told_without_it(runtime: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    watching = server(port, tmp_path / "incidents.db")
    job = torchrun(runtime, "detaches.py", 3, NCCLWATCH_SERVER=url, NCCLWATCH_JOB="job")
    try:

        def incidents() -> list[dict[str, Any]]:
            try:
                found: list[dict[str, Any]] = json.loads(text(f"{url}/api/v1/incidents"))
            except OSError:
                return []  # the server has not come yet
            return found

        until(lambda: bool(incidents()), incidents)
        (incident,) = incidents()
        assert (incident["cause"], incident["certainty"]) == ("p2p_deadlock", "PROVEN"), incident
        assert "ranks 0-1" in incident["summary"], incident
    finally:
        end(job, runtime)
        watching.kill()
        watching.wait()
