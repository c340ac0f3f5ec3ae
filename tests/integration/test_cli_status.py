"""`ncclwatch status` and `ncclwatch version`."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration


def ncclwatch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ncclwatch", *arguments], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("status")) as process, FakeAgent(process.url) as agent:
        agent.hang(1)
        until(lambda: process.job().get("state") == "hung")
        yield process


def test_status_shows_jobs_and_open_incidents(server: ServerProcess) -> None:
    done = ncclwatch("status", "--server", server.url)
    (incident,) = server.incidents()
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["JOB", "STATE", "RANKS", "STEPS", "OPEN", "INCIDENTS"]
    assert done.stdout.splitlines()[1].split()[:3] == ["job", "hung", "2/2"]
    assert f"{incident['id']}  CRITICAL  job: rank 0 did not enter all_reduce" in done.stdout


def test_status_gives_machines_the_servers_own_answer(server: ServerProcess) -> None:
    said = json.loads(ncclwatch("status", "--json", "--server", server.url).stdout)
    assert said["jobs"][0]["id"] == "job"
    assert said["incidents"] == server.incidents()


def test_an_unreachable_server_is_one_sentence() -> None:
    done = ncclwatch("status", "--server", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "start ncclwatch-server there, or name another" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_flag_is_one_message() -> None:
    done = ncclwatch("status", "--bogus")
    assert done.returncode == 2
    assert "No such option" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_printed() -> None:
    assert ncclwatch("version").stdout.startswith("ncclwatch ")
