"""The command `ncclwatch-server`: how it starts, what it refuses, when it ends."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from ncclwatch_server.runtime import lifetime
from tests.integration.fake_agent import FakeAgent, until

pytestmark = pytest.mark.integration

GOOD = "s3-Kq81vXyTz04mWbRc"


def start(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    return subprocess.Popen(
        [sys.executable, "-m", "ncclwatch_server", *arguments],
        env={**inherited, **environ}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def refused(*arguments: str, **environ: str) -> str:
    """Return the sentence with which a server that cannot start ends."""
    with start(*arguments, **environ) as process:
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert output == ""
    assert len(errors.splitlines()) == 1
    return errors


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_it_says_where_it_listens_and_ends_cleanly_and_soon_with_agents_connected(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with start("--port", "0", "--store", str(tmp_path / "i.db")) as process:
            line = first_line(process)
            url = line.split()[-1]
            assert line.startswith("ncclwatch-server listens on http://127.0.0.1:")
            with FakeAgent(url) as agent:
                until(lambda agent=agent: agent.progress > 1)
                began = time.monotonic()
                process.send_signal(number)
                assert process.wait(10) == 0
                assert time.monotonic() - began < 2.0
    assert (tmp_path / "i.db").exists()


def test_a_port_in_use_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in refused("--port", str(port), "--ephemeral")


def test_a_public_address_without_a_token_is_refused() -> None:
    assert "NCCLWATCH_TOKEN" in refused("--host", "0.0.0.0")


@pytest.mark.parametrize(
    ("host", "token"), [("0.0.0.0", "a"), ("127.0.0.1", "fifteen-letters"), ("0.0.0.0", "ab" * 20)]
)
def test_a_token_that_can_be_guessed_is_refused_with_the_command_that_makes_a_good_one(host: str, token: str) -> None:
    said = refused("--host", host, NCCLWATCH_AGENT_TOKEN=f"{token} name=nodes")
    assert "the token of nodes has" in said
    assert "can be guessed" in said
    assert "secrets.token_urlsafe(32)" in said


def test_the_private_server_of_one_user_goes_on_with_a_warning() -> None:
    with start("--port", "0", "--ephemeral", NCCLWATCH_TOKEN="sesame") as process:
        assert "can be guessed" in first_line(process)
        assert "listens on" in first_line(process)
        process.terminate()


def test_a_trusted_proxy_that_is_no_address_is_a_sentence() -> None:
    assert "--trusted-proxy wants an address" in refused("--trusted-proxy", "proxy.cluster")


def test_a_store_that_cannot_be_opened_is_a_sentence() -> None:
    assert "--store" in refused("--port", "0", "--store", "/proc/none/incidents.db")


def test_an_unknown_flag_is_clicks_message() -> None:
    with start("--bogus") as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "No such option" in errors
    assert "Traceback" not in errors


def test_the_port_is_told_to_whoever_started_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "ncclwatch_server", "--port", "0", "--ephemeral", "--ready-fd", str(writer)],
        pass_fds=(writer,), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(writer)
    with os.fdopen(reader) as ready:
        port = int(ready.readline())
        assert httpx2.get(f"http://127.0.0.1:{port}/healthz").json()["service"] == "ncclwatch"
        assert ready.read() == ""
    process.terminate()
    assert process.wait(5) == 0


def test_it_ends_with_its_parent() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent,
        start("--port", "0", "--ephemeral", "--parent", str(parent.pid)) as process,
    ):
        first_line(process)
        assert process.poll() is None
        parent.kill()
        assert process.wait(5) == 0


def test_whoever_started_it_ends_it_though_no_agent_has_come_for_long() -> None:
    impatient = (
        "from ncclwatch_server.runtime import lifetime; lifetime.FIRST_AGENT_S = lifetime._LOOK_S = 0.01; "
        "from ncclwatch_server.__main__ import main; main()"
    )
    command = [sys.executable, "-c", impatient, "--port", "0", "--ephemeral", "--parent", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        first_line(process)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.terminate()


@pytest.mark.parametrize("opened", ["/dev/null", "socket"])
def test_a_descriptor_that_does_not_listen_is_refused(opened: str) -> None:
    with socket.socket() as idle, open(os.devnull) as null:
        number = {"/dev/null": null, "socket": idle}[opened].fileno()
        command = [sys.executable, "-m", "ncclwatch_server", "--listen-fd", str(number), "--ephemeral"]
        done = subprocess.run(command, pass_fds=(number,), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--listen-fd" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_ends_when_its_parent_has_ended_already() -> None:
    with subprocess.Popen(["true"]) as parent:
        parent.wait()
    with start("--port", "0", "--ephemeral", "--parent", str(parent.pid)) as process:
        assert process.wait(20) == 0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("agents", "expected_s"),
    [
        (lambda now: 0, 60.0),  # none ever came
        (lambda now: int(now < 5), 15.0),  # the last left at 5 s
        (lambda now: int(30 <= now < 90 or 95 <= now < 100), 110.0),  # came late, came again
    ],
)
def test_an_ephemeral_server_ends_when_nobody_needs_it(
    monkeypatch: pytest.MonkeyPatch, agents: object, expected_s: float
) -> None:
    clock = Clock()

    async def pass_time(delay_s: float) -> None:
        clock.now += delay_s

    monkeypatch.setattr(lifetime.asyncio, "sleep", pass_time)
    asyncio.run(lifetime.unneeded(lambda: agents(clock.now), clock))  # type: ignore[operator]
    assert expected_s - 1.0 <= clock.now <= expected_s + 1.0


def test_an_ephemeral_server_whose_machine_was_halted_goes_on_while_an_agent_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    pauses = iter([0.5, 600.0, *[0.5] * 100])

    async def pass_time(delay_s: float) -> None:
        clock.now += next(pauses)

    monkeypatch.setattr(lifetime.asyncio, "sleep", pass_time)
    asyncio.run(lifetime.unneeded(lambda: int(clock.now < 605.0), clock))
    assert 614.0 <= clock.now <= 616.0


def test_a_page_that_lets_its_own_name_lead_here_reads_nothing() -> None:
    with start("--port", "0", "--ephemeral", "--allow-host", "watch.cluster") as process:
        url = first_line(process).split()[-1]
        for host, status in (("evil.example", 421), ("watch.cluster", 200), ("localhost:1", 200)):
            assert httpx2.get(f"{url}/api/v1/jobs", headers={"Host": host}).status_code == status
        process.terminate()


def test_with_a_token_it_answers_to_any_name_and_a_public_address_warns_of_clear_text() -> None:
    with start("--host", "0.0.0.0", "--port", "0", "--ephemeral", NCCLWATCH_VIEWER_TOKEN=GOOD) as process:
        lines = [first_line(process), first_line(process)]
        assert any("clear text" in line for line in lines)
        url = next(line for line in lines if "listens on" in line).split()[-1].replace("0.0.0.0", "127.0.0.1")
        headers = {"Host": "head.cluster", "Authorization": f"Bearer {GOOD}"}
        assert httpx2.get(f"{url}/api/v1/jobs", headers=headers).status_code == 200
        process.terminate()
