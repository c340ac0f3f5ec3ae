"""A real server process judges, and a real receiver hears of it: first, once more with stacks, and when it is over."""

import base64
import contextlib
import hashlib
import hmac
import os
import sqlite3
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from ncclwatch.contract.model.rank import Ending
from tests.integration.command_line import ncclwatch
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.real_jobs import incidents, kill_all, running, runtime, torchrun
from tests.integration.receiver import Received, Receiver
from tests.integration.server_process import ServerProcess

__all__ = ["runtime"]  # a fixture

pytestmark = pytest.mark.integration

SECRET = "a secret of at least sixteen bytes"


def targets(directory: Path, receiver: Receiver, more: str = "") -> str:
    """Write a file of targets with one webhook."""
    path = directory / "notify.toml"
    path.write_text(
        f'link = "https://watch.example.com/"\n[[target]]\nkind = "webhook"\nurl = "{receiver.url}/hook"\n'
        f'secret = "{SECRET}"\n{more}'
    )
    return str(path)


def is_signed(received: Received) -> bool:
    """Check a signature as the specification of Standard Webhooks tells receivers to."""
    said = received.headers
    content = f"{said['webhook-id']}.{said['webhook-timestamp']}.".encode() + received.body
    expected = base64.b64encode(hmac.new(SECRET.encode(), content, hashlib.sha256).digest()).decode()
    return said["webhook-signature"] == f"v1,{expected}"


@pytest.mark.timeout(300)
def test_a_real_job_that_hangs_is_told_to_its_end(tmp_path: Path, runtime: Path) -> None:
    read, write = os.pipe()
    with Receiver() as receiver:
        command = ["--port", "0", "--store", str(tmp_path / "incidents.db"), "--ready-fd", str(write)]
        server = subprocess.Popen(
            [sys.executable, "-m", "ncclwatch_server", *command, "--notify", targets(tmp_path, receiver)],
            pass_fds=(write,), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(write)
        with os.fdopen(read) as ready:
            url = f"http://127.0.0.1:{ready.readline().strip()}"
        job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=url)
        try:
            until(lambda: receiver.events == ["firing", "updated"], 150.0)
            # Whatever the ranks still say of it is no news.
            seen = len(incidents(url))
            job.kill()
            for process in running(runtime, "hang.py"):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            until(lambda: receiver.events == ["firing", "updated", "resolved"], 60.0)
        finally:
            server.terminate()
            server.wait()
            job.kill()
            kill_all(runtime)  # the agent holds the job's output open
            job.communicate()
    first, update, last = (received.json["incidents"][0] for received in receiver.taken)
    assert seen == 1
    assert all(is_signed(received) for received in receiver.taken)
    assert len({received.headers["webhook-id"] for received in receiver.taken}) == 3
    assert [each["id"] for each in (update, last)] == [first["id"]] * 2
    assert "rank 1 called barrier at hang.py:16" in first["summary"]
    assert len(update["stacks"]) > len(first["stacks"])
    assert last["state"] == "ended"
    said = receiver.taken[0].json
    assert set(said) == {"schema", "job", "world_size", "incidents", "notification"}
    assert said["notification"]["link"] == f"https://watch.example.com/incidents/{first['id']}"
    assert 0 < said["notification"]["gpu_hours"] < receiver.taken[2].json["notification"]["gpu_hours"]
    print(f"verdict to first message: {delay_s(receiver.taken[0]):.3f} s")


def delay_s(received: Received) -> float:
    """Return the time from a verdict to the arrival of its message."""
    return received.at - datetime.fromisoformat(received.json["incidents"][0]["opened_at"]).timestamp()


@pytest.mark.long
def test_a_restart_and_a_stuck_target_neither_delay_nor_repeat_what_is_told(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'incidents.db'}"
    with Receiver() as receiver, Receiver() as stuck:
        stuck.manners.silent = True
        notify = targets(tmp_path, receiver, f'[[target]]\nkind = "slack"\nname = "stuck"\nurl = "{stuck.url}/s"\n')
        with ServerProcess(tmp_path, store=store, notify=notify) as server:
            port = server.port
            with FakeAgent(server.url) as agent:
                agent.hang(1)
                until(lambda: told(store) == [("webhook", "firing", 1)])
                until(lambda: stuck.all)
                judged = judgements(server)
                until(lambda: judgements(server) > judged)  # a stuck target stops no judging
        assert receiver.events == ["firing"]
        print(f"verdict to first message: {delay_s(receiver.taken[0]):.3f} s")
        assert delay_s(receiver.taken[0]) <= 5.0  # a second is promised; behind the stuck target it would be ten
        with ServerProcess(tmp_path, port=port, store=store, notify=notify) as server, FakeAgent(server.url) as agent:
            agent.hang(1)
            judged = judgements(server)
            until(lambda: judgements(server) > judged + 3)
            assert receiver.events == ["firing"]
            agent.go_on()
            until(lambda: receiver.events == ["firing", "resolved"])
            delivered = 'ncclwatch_notifications_total{channel="webhook",outcome="delivered"} 1.0'
            until(lambda: delivered in server.get("/metrics").text)
    assert receiver.taken[1].json["incidents"][0]["state"] == "resolved"
    assert not stuck.taken


def told(store: str) -> list[tuple[str, str, int]]:
    """Return what the database says was told."""
    connection = sqlite3.connect(store.removeprefix("sqlite:///"))
    try:
        return connection.execute("SELECT target, stage, messages FROM notifications").fetchall()
    finally:
        connection.close()


def judgements(server: ServerProcess) -> float:
    """Return how often the server has judged."""
    lines = server.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("ncclwatch_judgements_total"))


def test_a_job_that_crashes_is_told_although_it_is_over_at_once(tmp_path: Path) -> None:
    with (
        Receiver() as receiver,
        ServerProcess(tmp_path, notify=targets(tmp_path, receiver)) as server,
        FakeAgent(server.url) as agent,
    ):
        until(lambda: agent.progress > 3)
        agent.end(0, Ending(kind="crashed", exit_code=1, exception="ValueError: no"))
        agent.end(1, Ending(kind="signalled", signal=15))
        agent.gone()
        until(lambda: receiver.events)
    assert receiver.taken[0].event == "firing"
    assert receiver.taken[0].json["incidents"][0]["cause"] == "rank_crashed"


def test_a_silenced_job_is_told_when_the_silence_is_removed(tmp_path: Path) -> None:
    with (
        Receiver() as receiver,
        ServerProcess(tmp_path, notify=targets(tmp_path, receiver)) as server,
        FakeAgent(server.url, job="prod-7") as agent,
    ):
        made = ncclwatch("silence", "add", "prod-*", "--for", "2h", "--reason", "upgrade", server=server.url)
        assert made.returncode == 0, made.stderr
        silence = made.stdout.split()[0]
        agent.hang(1)
        until(lambda: server.incidents())
        judged = judgements(server)
        until(lambda: judgements(server) > judged + 3)
        assert not receiver.all
        listed = ncclwatch("silence", "list", server=server.url).stdout
        assert "active" in listed and "prod-*" in listed and "upgrade" in listed
        removed = ncclwatch("silence", "remove", silence, server=server.url)
        assert "expired" in removed.stdout
        until(lambda: receiver.events == ["firing"])
        unknown = ncclwatch("silence", "remove", "nope", server=server.url)
        assert unknown.returncode == 2
        assert "nope" in unknown.stderr
