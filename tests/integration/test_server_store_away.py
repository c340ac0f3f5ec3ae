"""A store that is away, full or silent: judging goes on, what cannot be stored waits, is told, and is stored later."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ncclwatch.contract import config
from ncclwatch.contract.model.rank import Ending
from ncclwatch_server.settings import Keeping
from ncclwatch_server.store.incident_store import Store
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess
from tests.postgres import Postgres
from tests.unit.server.incidents.test_texts import INCIDENT

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0


def health(server: ServerProcess) -> dict:
    return server.get("/health").json()


def hang(server: ServerProcess, job: str) -> dict:
    """Let a job hang until its incident is open, with its stacks, and end, with its incident."""
    with FakeAgent(server.url, job=job) as agent:
        until(lambda: agent.progress > 1)
        agent.hang(1)
        until(lambda: [i for i in server.incidents() if i["job"] == job and i["stacks"]], PATIENCE_S, "an incident")
        for rank in (0, 1):
            agent.end(rank, Ending(kind="exited", exit_code=0))
        agent.gone()
        until(lambda: [i for i in server.incidents() if i["job"] == job and i["state"] == "ended"], PATIENCE_S)
    return next(i for i in server.incidents() if i["job"] == job)


def stored(url: str) -> dict[str, str]:
    with closing(Store(url)) as store:
        return {incident.job: incident.state.value for incident in store.load()}


def test_a_database_that_is_stopped_and_started_again_gets_all_that_happened_meanwhile(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.new_database()
    with ServerProcess(tmp_path, store=url) as server:
        hang(server, "before")
        until(lambda: stored(url) == {"before": "ended"}, PATIENCE_S)
        assert health(server)["store"]["working"]
        postgres.stop()
        try:
            hang(server, "while")
            until(lambda: not health(server)["store"]["working"], PATIENCE_S)
            told = health(server)
            assert (told["working"], told["store"]["not_stored"]) == (False, 0)
            assert told["store"]["waiting"] >= 1
            assert told["store"]["problem"]
            listed = server.get("/api/v1/incidents")
            assert {each["job"] for each in listed.json()} == {"before", "while"}  # as far as they are in memory
            assert "does not answer: only incidents in memory are listed" in listed.headers[config.INCOMPLETE_HEADER]
            why = listed.headers[config.INCOMPLETE_HEADER]
            assert why.startswith("the incident store postgresql")
            assert f"T{why[1:]}." in server.get("/incidents").text
            unknown = server.get("/api/v1/incidents/nobody")
            assert (unknown.status_code, "is in memory, and the incident store" in unknown.text) == (503, True)
            read = subprocess.run(
                [sys.executable, "-m", "ncclwatch", "incidents", "--server", server.url],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert "does not answer: only incidents in memory are listed" in json.loads(read.stdout)["incomplete"]
        finally:
            postgres.start()
        until(lambda: health(server)["store"]["working"] and not health(server)["store"]["waiting"], PATIENCE_S)
        assert config.INCOMPLETE_HEADER not in server.get("/api/v1/incidents").headers
        assert server.get("/api/v1/incidents/nobody").status_code == 404
        assert stored(url) == {"before": "ended", "while": "ended"}
        log = server.log.read_text()
        assert log.count("judging goes on, and it is tried again") == 1
        assert "can be written again" in log


def test_a_database_that_does_not_answer_delays_nobody(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.new_database()
    with ServerProcess(tmp_path, store=url) as server:
        hang(server, "before")
        until(lambda: stored(url) == {"before": "ended"}, PATIENCE_S)
        assert postgres.process is not None
        frozen = [postgres.process.pid, *_children(postgres.process.pid)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            hang(server, "while")
            assert health(server)["store"]["waiting"] >= 1
        finally:
            for pid in reversed(frozen):
                os.kill(pid, signal.SIGCONT)
        until(lambda: not health(server)["store"]["waiting"], PATIENCE_S)
        until(lambda: stored(url).get("while") == "ended", PATIENCE_S)


def test_a_server_that_starts_before_its_database_judges_and_remembers_later(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.new_database()
    with Store(url) as store:
        store.put(replace(INCIDENT, id="earlier", job="earlier"))
    postgres.stop()
    try:
        with ServerProcess(tmp_path, store=url) as server:
            hang(server, "at once")
            assert [i["id"] for i in server.incidents() if i["job"] == "earlier"] == []
            assert not health(server)["working"]
            postgres.start()
            until(lambda: [i for i in server.incidents() if i["id"] == "earlier"], PATIENCE_S, "what was known before")
            until(lambda: health(server)["working"], PATIENCE_S)
        assert set(stored(url)) == {"earlier", "at once"}
    finally:
        if postgres.process is None:
            postgres.start()


def test_a_wrong_name_of_a_database_is_no_outage(postgres: Postgres, tmp_path: Path) -> None:
    from ncclwatch.contract.errors import ConfigError

    with pytest.raises(ConfigError, match=r'cannot open the incident store .*"nobody_made_it" does not exist'):
        Store(postgres.new_database().rsplit("/", 1)[0] + "/nobody_made_it")


def test_a_server_whose_disk_is_full_judges_and_stores_when_there_is_room(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
    with ServerProcess(tmp_path, store=url) as server:
        hang(server, "before")
        until(lambda: stored(url) == {"before": "ended"}, PATIENCE_S)
        full = sum(path.stat().st_size for path in tmp_path.glob("incidents.db*"))
        _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        server.log.write_bytes(b"")  # it has the same bound
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, most))
        assert full > 4096
        hang(server, "while")
        until(lambda: not health(server)["store"]["working"], PATIENCE_S)
        assert health(server)["store"]["waiting"] >= 1
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
        until(lambda: health(server)["store"]["working"] and not health(server)["store"]["waiting"], PATIENCE_S)
    assert stored(url) == {"before": "ended", "while": "ended"}


def test_a_file_system_without_room_takes_what_waited_once_there_is_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with _small_disk(tmp_path / "disk") as disk:
        url = f"sqlite:///{disk / 'incidents.db'}"
        with closing(Store(url, Keeping(days=1e5, incidents_per_job=10**6))) as store:
            store.put(INCIDENT)
            store._write()
            ballast = disk / "ballast"
            with pytest.raises(OSError, match="No space left"), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            for number in range(200):
                store.put(replace(INCIDENT, id=str(number)))
            store._write()
            assert (store.health().working, store.health().waiting) == (False, 200)
            assert "full" in store.health().problem
            assert "judging goes on" in caplog.text
            assert [incident.id for incident in store.load()] == [INCIDENT.id]
            ballast.unlink()
            store._write()
            assert (store.health().working, store.health().waiting) == (True, 0)
            assert len(store.load()) == 201


@contextmanager
def _small_disk(path: Path) -> Iterator[Path]:
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
