"""Groups of one name on different ranks of a real job are watched, told and judged apart: ring, agent, server."""

import contextlib
import json
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.real_jobs import incidents, running, runtime, server, torchrun, until
from tests.ports import free_port

__all__ = ["runtime"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

JOB = "shared"
LAG_MAX = 8  # collectives between two looks at ranks that are in step: the sides part by hundreds


def told(url: str, family: str) -> dict[tuple[str, str], float]:
    """Return the value for each (name, first rank) of a group; none while the server does not answer."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except (urllib.error.URLError, OSError):
        return {}
    return {
        (sample.labels["process_group"], sample.labels["first_rank"]): sample.value
        for each in families
        if each.name == family
        for sample in each.samples
        if sample.labels["job_id"] == JOB
    }


def groups(url: str) -> dict[str, dict]:
    """Return the groups of the job by the name that people read."""
    with urllib.request.urlopen(f"{url}/api/v1/jobs/{JOB}/groups", timeout=5) as answer:
        return {each["name"]: each for each in json.load(answer)["groups"]}


def done(url: str) -> dict[tuple[str, str], float]:
    """Return what the groups have completed, once both pairs have done enough to be far apart."""
    found = told(url, "ncclwatch_process_group_collectives_completed")
    return found if found.get(("1", "0"), 0) > 50 and found.get(("1", "2"), 0) > found["1", "0"] + 50 else {}


@pytest.mark.long
def test_two_groups_that_share_a_name_are_not_mixed_on_their_way_to_metrics_pages_and_verdicts(
    runtime: Path, tmp_path: Path
):
    port, stop = free_port(), tmp_path / "stop"
    url = f"http://127.0.0.1:{port}"
    head = server(port, tmp_path / "incidents.db")
    job = torchrun(
        runtime, "shared_names.py", 4, NCCLWATCH_SERVER=url, NCCLWATCH_JOB=JOB, STOP_FILE=str(stop)
    )  # fmt: skip
    assert job.stdout is not None
    try:
        assert [job.stdout.readline() for _ in range(4)] == ["group 1\n"] * 4
        assert set(until(lambda: done(url))) == {("0", "0"), ("1", "0"), ("1", "2")}
        lags = told(url, "ncclwatch_process_group_sequence_lag")
        assert max(lags.values()) <= LAG_MAX, lags
        assert [incident for incident in incidents(url) if incident["severity"] == "critical"] == []
        stop.touch()
        (incident,) = until(lambda: [each for each in incidents(url) if each["severity"] == "critical"])
        assert ([each["rank"] for each in incident["culprits"]], incident["victims"]) == ([3], [2])
        lags = told(url, "ncclwatch_process_group_sequence_lag")
        assert lags["1", "2"] == 1
        assert lags["1", "0"] <= LAG_MAX
        shown = groups(url)
        assert shown["group 1 from rank 2"]["behind"] == [3]
        assert shown["group 1 from rank 0"]["size"] == 2
    finally:
        job.kill()
        for rank in running(runtime, "shared_names.py"):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has lost the others meanwhile
                rank.kill()
        head.terminate()
        head.wait()
        job.communicate()
