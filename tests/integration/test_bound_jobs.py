"""Real jobs of a team on a server where each team has a token that is bound to its namespace."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.integration.command_line import ncclwatch
from tests.integration.fake_agent import until
from tests.integration.real_jobs import kill_all, torchrun
from tests.integration.server_process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

READER = "reader-0123456789abcdef"
TEAM_A, TEAM_B = "team-a-0123456789abcdef", "team-b-0123456789abcdef"
TOKENS = f"{TEAM_A} name=team-a namespace=team-a jobs=5\n{TEAM_B} name=team-b namespace=team-b"
JOB = "team-a/run-1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run a server with its real judge."""
    tokens = {"NCCLWATCH_AGENT_TOKEN": TOKENS}
    directory = tmp_path_factory.mktemp("bound")
    with ServerProcess(directory, token=READER, environ=tokens, program="tests.integration.pages_server") as process:
        yield process


@contextmanager
def hanging(server: ServerProcess, runtime: Path, token: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a job that hangs."""
    job = torchrun(
        runtime, "hang.py", 2, NCCLWATCH_SERVER=server.url, NCCLWATCH_JOB=JOB, NCCLWATCH_AGENT_TOKEN=token
    )  # fmt: skip
    try:
        yield job
    finally:
        kill_all(runtime)
        job.communicate()


def said(job: "subprocess.Popen[str]", words: str) -> str:
    """Return the first word of ncclwatch on the job's terminal."""
    assert job.stderr is not None
    line = ""
    while "ncclwatch: " not in line:
        line = job.stderr.readline()
        assert line, "the job ended"
    assert words in line
    return line


def test_a_job_in_a_namespace_hangs_and_is_found_by_its_name_everywhere(server: ServerProcess, tmp_path: Path) -> None:
    with hanging(server, tmp_path / "runtime", TEAM_A) as job:
        said(job, "ncclwatch: CRITICAL")
        until(lambda: [each["job"] for each in server.incidents()] == [JOB], what="the incident is listed")
        for path in (f"/api/v1/jobs/{JOB}", f"/api/v1/jobs/{quote(JOB, safe='')}"):
            assert server.get(path).json()["id"] == JOB
        report = server.get(f"/api/v1/jobs/{quote(JOB, safe='')}/report").json()
        assert (report["job"], [each["state"] for each in report["incidents"]]) == (JOB, ["open"])
        assert f'data-source="/matrix/{quote(JOB, safe="")}"' in server.get(f"/jobs/{quote(JOB, safe='')}").text
        assert f'ncclwatch_job_hung{{job_id="{JOB}"}} 1.0' in server.get("/metrics").text
        asked = ncclwatch("status", JOB, "--json", server=server.url, NCCLWATCH_TOKEN=READER)
        assert [each["id"] for each in json.loads(asked.stdout)["jobs"]] == [JOB]


def test_a_job_in_the_namespace_of_another_team_is_refused_on_its_terminal(
    server: ServerProcess, tmp_path: Path
) -> None:
    with hanging(server, tmp_path / "runtime", TEAM_B) as job:
        told = said(job, "does not watch this job")
    assert f"the token of team-b is bound to namespace=team-b, and does not allow job '{JOB}'" in told
    assert "NCCLWATCH_JOB=team-b/" in told
