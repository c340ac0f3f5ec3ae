"""A store that is deleted, replaced or locked under a real server, and one that a wrong clock would empty."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from ncclwatch_server.incidents.book import IncidentState
from ncclwatch_server.store.incident_store import Store
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess
from tests.unit.server.incidents.test_texts import INCIDENT

pytestmark = pytest.mark.integration

DAY_S = 86_400.0
PATIENCE_S = 60.0
TOKEN = "0123456789abcdef" * 3


def health(server: ServerProcess) -> dict:
    return server.get("/health").json()["store"]


def hang(server: ServerProcess, job: str) -> None:
    """Let a job hang until its incident is open, and stored."""
    with FakeAgent(server.url, job=job, instance=f"{job}:1", agent=job) as agent:
        agent.hang(1)
        until(lambda: [i for i in server.incidents() if i["job"] == job], PATIENCE_S, "an incident")
        until(lambda: not health(server)["waiting"], PATIENCE_S, "that it is stored")


def silence(server: ServerProcess, job: str) -> str:
    answer = httpx2.post(f"{server.url}/api/v1/silences", json={"job": job, "lasts_s": 3600})
    return str(answer.json()["id"])


def column(path: Path, table: str, name: str) -> set[str]:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            return {str(row[0]) for row in store.execute(f"SELECT {name} FROM {table}")}
    except sqlite3.Error:
        return set()


def test_a_store_that_is_deleted_under_the_server_is_begun_anew_with_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "incidents.db"
    with ServerProcess(tmp_path, store=f"sqlite:///{path}") as server:
        hang(server, "before")
        muted = silence(server, "other")
        until(lambda: muted in column(path, "silences", "id"))
        for file in tmp_path.glob("incidents.db*"):
            file.unlink()
        until(lambda: column(path, "incidents", "job") == {"before"}, PATIENCE_S, "it is written again")
        until(lambda: column(path, "silences", "id") == {muted}, PATIENCE_S, "so is the silence")
        hang(server, "after")
        assert column(path, "incidents", "job") == {"before", "after"}
        told = health(server)
        assert (told["working"], told["begun_anew"]) == (True, 1)
        assert told["failures"] in {1, 2}  # the loss, and what was being written while one file after the other went
        assert path.stat().st_mode & 0o777 == 0o600
        assert server.log.read_text().count("was deleted or replaced: a new one is begun") == 1


def test_a_store_that_is_replaced_by_a_copy_of_yesterday_has_both(tmp_path: Path) -> None:
    path, copy = tmp_path / "incidents.db", tmp_path / "yesterday.db"
    with Store(f"sqlite:///{copy}") as store:
        store.put(replace(INCIDENT, id="old", job="yesterday", state=IncidentState.ENDED, closed_at=time.time()))
    with ServerProcess(tmp_path, store=f"sqlite:///{path}") as server:
        hang(server, "today")
        for file in tmp_path.glob("incidents.db*"):
            file.unlink()
        shutil.copy(copy, path)
        until(lambda: column(path, "incidents", "job") == {"yesterday", "today"}, PATIENCE_S, "both")
        until(lambda: {i["job"] for i in server.incidents()} == {"yesterday", "today"}, PATIENCE_S)


@pytest.mark.long
def test_a_store_that_cannot_be_begun_anew_is_told_until_it_can(tmp_path: Path) -> None:
    place = tmp_path / "state"
    path = place / "incidents.db"
    with ServerProcess(tmp_path, store=f"sqlite:///{path}") as server:
        hang(server, "before")
        shutil.rmtree(place)
        place.write_text("in the way")
        until(lambda: not health(server)["working"], PATIENCE_S, "that it is told")
        assert server.get("/readyz").json()["store_works"] is False
        assert server.get("/readyz").status_code == 200  # jobs are judged all the same
        place.unlink()
        until(lambda: column(path, "incidents", "job") == {"before"}, PATIENCE_S, "it is written again")
        until(lambda: health(server)["working"], PATIENCE_S)
        assert health(server)["begun_anew"] == 1


@pytest.mark.long
def test_a_server_whose_store_is_locked_starts_without_it_and_remembers_later(tmp_path: Path) -> None:
    path = tmp_path / "incidents.db"
    with ServerProcess(tmp_path, store=f"sqlite:///{path}") as server:
        hang(server, "before")
        muted = silence(server, "silent*")
        until(lambda: muted in column(path, "silences", "id"))
        server.process.terminate()
        server.process.wait(10)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE silences SET reason = reason")
        began = time.monotonic()
        with ServerProcess(tmp_path, store=f"sqlite:///{path}") as server:
            assert time.monotonic() - began < 40
            assert (health(server)["working"], "locked" in health(server)["problem"]) == (False, True)
            with FakeAgent(server.url, job="while", instance="w:1", agent="w") as agent:
                agent.hang(1)
                until(lambda: [i for i in server.incidents() if i["job"] == "while"], PATIENCE_S, "an incident")
            other.execute("COMMIT")
            other.close()
            until(lambda: {i["job"] for i in server.incidents()} == {"before", "while"}, PATIENCE_S, "what was before")
            until(lambda: [s["id"] for s in server.get("/api/v1/silences").json()] == [muted], PATIENCE_S)
            until(lambda: health(server)["working"], PATIENCE_S)
            until(lambda: column(path, "incidents", "job") == {"before", "while"}, PATIENCE_S)


def test_one_start_with_a_clock_400_days_ahead_deletes_no_history(tmp_path: Path) -> None:
    path = tmp_path / "incidents.db"
    now = time.time()
    with Store(f"sqlite:///{path}") as store:
        for age in (1, 30, 80):
            at = now - age * DAY_S
            ended = replace(INCIDENT, id=f"{age}", job=f"{age} days old", state=IncidentState.ENDED)
            store.put(replace(ended, opened_at=at, closed_at=at))
    kept = {"1 days old", "30 days old", "80 days old"}
    assert column(path, "incidents", "job") == kept
    sabotage = {"SABOTAGE": "clock ahead", "SABOTAGE_WHEN": "never"}
    with ServerProcess(
        tmp_path, store=f"sqlite:///{path}", environ=sabotage, program="tests.integration.sabotaged_server"
    ) as server:
        until(lambda: "days ahead of what the store" in server.log.read_text(), PATIENCE_S, "that it is told")
        hang(server, "new")
        assert column(path, "incidents", "job") == kept | {"new"}
    with ServerProcess(tmp_path, store=f"sqlite:///{path}") as server:
        hang(server, "newer")
        assert column(path, "incidents", "job") == kept | {"new", "newer"}


def test_who_silences_is_noted_as_the_token_says(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} name=alice\n")
    environ = {"NCCLWATCH_OPERATOR_TOKEN_FILE": str(tokens)}
    tokens.chmod(0o600)
    client = {"NCCLWATCH_OPERATOR_TOKEN": TOKEN, "NCCLWATCH_TOKEN": TOKEN}
    with ServerProcess(tmp_path, store=f"sqlite:///{tmp_path / 'i.db'}", environ=environ) as server:
        command = [sys.executable, "-m", "ncclwatch", "silence"]
        done = subprocess.run(
            [*command, "add", "prod-*", "--for", "1h", "--server", server.url],
            capture_output=True, text=True, timeout=60, env={**environ_of_tests(), **client},
        )  # fmt: skip
        assert "by alice, signed " in done.stdout, done.stderr
        answer = httpx2.get(f"{server.url}/api/v1/audit", headers={"Authorization": f"Bearer {TOKEN}"}).json()
        assert [(e["who"], e["act"], e["job"]) for e in answer["entries"]] == [("alice", "silence", "prod-*")]
        assert answer["entries"][0]["detail"].startswith("from 127.0.0.1: silence "), json.dumps(answer)


def environ_of_tests() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("NCCLWATCH_")}
