"""Two servers on one PostgreSQL: agents find the one that leads, and another takes over whatever becomes of it.

A real job hangs meanwhile. It is one incident on whichever server is asked, and one alert.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.integration.real_jobs import end, incidents, kill_all, runtime, torchrun, until
from tests.integration.receiver import Receiver
from tests.integration.server_process import ROOT
from tests.ports import free_port
from tests.postgres import Postgres

__all__ = ["runtime"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


class Server:
    """One of several `ncclwatch-server`s."""

    def __init__(self, directory: Path, store: str, notify: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
        self.log = directory / f"{self.port}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ncclwatch_server", "--port", str(self.port), "--advertise", self.url,
                 "--store", store, "--notify", str(notify)],
                env=inherited, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def role(self) -> dict:
        """Return what it says of who leads; nothing while it does not answer."""
        try:
            return httpx2.get(f"{self.url}/leaderz", timeout=2).json()
        except (httpx2.HTTPError, ValueError):
            return {}

    def leads(self) -> bool:
        """Whether it may judge."""
        return bool(self.role().get("confirmed"))

    def follows(self, other: "Server") -> bool:
        """Whether it knows that another one leads."""
        role = self.role()
        return bool(role) and not role["leads"] and role["leader"] == other.url

    def connected(self) -> list[int]:
        """Return the ranks of all jobs that it watches now."""
        try:
            answer = httpx2.get(f"{self.url}/api/v1/jobs", timeout=2)
            jobs = answer.json() if answer.status_code == 200 else []
        except (httpx2.HTTPError, ValueError):
            return []
        return [job["world_size"] for job in jobs if job["ranks_seen"] == job["world_size"]]

    def said(self) -> str:
        """Return its log."""
        return self.log.read_text()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as taking:
        yield taking


@pytest.fixture
def two(postgres: Postgres, tmp_path: Path, receiver: Receiver) -> Iterator[tuple[Server, Server]]:
    """The leader, and the one that follows it."""
    notify = tmp_path / "notify.toml"
    secret = "a secret of at least sixteen bytes"
    notify.write_text(f'[[target]]\nkind = "webhook"\nurl = "{receiver.url}"\nsecret = "{secret}"\n')
    store = postgres.new_database()
    first = Server(tmp_path, store, notify)
    servers = [first]
    try:
        until(first.leads, first.said)
        servers.append(Server(tmp_path, store, notify))
        until(lambda: servers[1].follows(first), servers[1].said)
        yield first, servers[1]
    finally:
        for each in servers:
            each.process.kill()
            each.process.wait()


def test_a_hang_stays_one_incident_on_whichever_server_leads(
    two: tuple[Server, Server], runtime: Path, receiver: Receiver
) -> None:
    a, b = two
    job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=f"{b.url},{a.url}")  # the first one follows
    try:
        until(lambda: incidents(a.url), a.said)
        found = incidents(a.url)
        assert incidents(b.url) == found
        assert [each["state"] for each in found] == ["open"]
        until(lambda: receiver.taken, a.said)

        os.kill(a.process.pid, signal.SIGSTOP)
        until(b.leads, b.said)
        until(b.connected, b.said)
        os.kill(a.process.pid, signal.SIGCONT)
        until(lambda: a.follows(b), a.said)

        b.process.kill()
        b.process.wait()
        until(a.leads, a.said)
        until(a.connected, a.said)
        assert [(each["id"], each["state"]) for each in incidents(a.url)] == [(found[0]["id"], "open")]

        kill_all(runtime, "hang.py")
        until(lambda: [each["state"] for each in incidents(a.url)] == ["ended"], a.said)
        assert [each["id"] for each in incidents(a.url)] == [found[0]["id"]]
        until(lambda: "resolved" in receiver.events, a.said)
        assert [receiver.events.count(event) for event in ("firing", "resolved")] == [1, 1], receiver.events
    finally:
        end(job, runtime)


def test_a_database_that_is_away_for_all_changes_no_leader_and_a_hang_is_found(
    two: tuple[Server, Server], runtime: Path, postgres: Postgres, receiver: Receiver
) -> None:
    a, b = two
    job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=f"{b.url},{a.url}")
    try:
        until(a.connected, a.said)
        postgres.stop()
        try:
            until(lambda: incidents(b.url), a.said)
            assert (a.leads(), b.follows(a)) == (True, True)
            until(lambda: receiver.taken, a.said)
        finally:
            postgres.start()
        until(lambda: "works again" in b.said(), b.said)
        until(lambda: "works again" in a.said(), a.said)
        assert (a.leads(), b.follows(a)) == (True, True)
        a.process.send_signal(signal.SIGTERM)
        assert a.process.wait(20) == 0
        until(b.connected, b.said)
        assert len(incidents(b.url)) == 1
        assert receiver.events.count("firing") == 1, receiver.events
    finally:
        end(job, runtime)


def test_a_follower_refuses_whom_the_leader_would(two: tuple[Server, Server]) -> None:
    """Neither has a token: they serve their own user, by their own names."""
    _, follower = two
    assert httpx2.get(f"{follower.url}/api/v1/jobs").json() == []
    figures = [httpx2.get(f"{each.url}/metrics").text for each in two]
    assert ["ncclwatch_server_leads 1.0" in figures[0], "ncclwatch_server_leads 0.0" in figures[1]] == [True, True]
    assert httpx2.get(f"{follower.url}/api/v1/jobs", headers={"host": "evil.example"}).status_code == 421
    if os.geteuid() == 0:
        asked = subprocess.run(
            [sys.executable, "-m", "tests.integration.other_user", "12345", "ask", str(follower.port), "/api/v1/jobs"],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert "it serves only the user who started it" in asked.stdout
