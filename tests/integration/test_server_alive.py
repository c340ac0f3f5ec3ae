"""Loops of a real server die and hang: they are begun anew, or told, or the process ends with a code that is not 0."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import uvicorn

from ncclwatch.contract.machine.liveness import EXIT_STOOD_STILL
from ncclwatch_server.security.crowd import Crowd
from ncclwatch_server.serving import uvicorn_server
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.receiver import Receiver
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration


@contextmanager
def sabotaged(directory: Path, sabotage: str, receiver: Receiver) -> Iterator[tuple[ServerProcess, Path]]:
    """Start a server; its sabotage begins when the path is made."""
    targets = directory / "notify.toml"
    targets.write_text(f'[[target]]\nkind = "webhook"\nurl = "{receiver.url}/hook"\nsecret = "{"x" * 24}"\n')
    when = directory / "now"
    with ServerProcess(
        directory,
        store=f"sqlite:///{directory / 'incidents.db'}",
        notify=str(targets),
        environ={"SABOTAGE": sabotage, "SABOTAGE_WHEN": str(when)},
        program="tests.integration.sabotaged_server",
    ) as server:
        until(lambda: server.get("/readyz").status_code == 200)
        yield server, when


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening


def loop(server: ServerProcess, name: str) -> dict:
    return next(each for each in server.get("/healthz").json()["loops"] if each["name"] == name)


def figure(server: ServerProcess, family: str, name: str) -> float:
    text = server.get("/metrics").text
    found = re.search(rf'^ncclwatch_{family}\{{loop="{name}"\}} (\S+)$', text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


@pytest.mark.parametrize(
    ("sabotage", "name"),
    [
        ("watch dies", "watch"),
        ("watch dies by exit", "watch"),
        ("pages dies", "pages"),
        ("lag dies", "lag"),
        ("store dies", "store"),
        ("store dies by exit", "store"),
        ("records dies", "records"),
    ],
)
def test_a_loop_that_dies_is_begun_anew_and_does_its_work(
    tmp_path: Path, receiver: Receiver, sabotage: str, name: str
) -> None:
    with sabotaged(tmp_path, sabotage, receiver) as (server, when):
        when.touch()
        until(lambda: loop(server, name)["restarts"] == 1, what=f"{name} begun anew")
        until(lambda: not loop(server, name)["stands_still"])
        assert server.get("/healthz").status_code == 200
        assert figure(server, "loop_restarts_total", name) == 1
        with FakeAgent(server.url) as agent:
            until(lambda: agent.progress > 1)
            agent.hang(1)
            until(lambda: [i for i in server.incidents() if i["state"] == "open"], what="an incident")
            until(lambda: receiver.taken, what="an alert")
            until(lambda: not server.get("/health").json()["store"]["waiting"])
        log = server.log.read_text()
        assert f"the loop '{name}' has ended with" in log
        assert log.count("Traceback") == 1


def test_a_notifier_whose_thread_is_ended_goes_on_with_what_it_owed(tmp_path: Path, receiver: Receiver) -> None:
    with sabotaged(tmp_path, "notifier dies by exit", receiver) as (server, when):
        with FakeAgent(server.url, job="before", agent="a1") as agent:
            agent.hang(1)
            until(lambda: "firing" in receiver.events, what="the first alert")
            when.touch()
            with FakeAgent(server.url, job="after", instance="host:2", agent="a2") as other:
                other.hang(1)
                until(lambda: loop(server, "notifier")["restarts"] == 1)
                agent.go_on()
                other.go_on()
                until(lambda: "resolved" in receiver.events, what="the end of what was told before")
        assert server.get("/healthz").status_code == 200


def test_a_watch_that_hangs_is_told_and_ends_the_process(tmp_path: Path, receiver: Receiver) -> None:
    with sabotaged(tmp_path, "watch hangs", receiver) as (server, when):
        when.touch()
        until(lambda: server.get("/healthz").status_code == 503, what="a server that says so")
        said = server.get("/healthz").json()
        assert re.match(r"the loop 'watch' has not finished a round for \d+ s", said["detail"])
        assert next(each for each in said["loops"] if each["name"] == "watch")["age_s"] > 2.5
        assert server.get("/readyz").status_code == 503
        assert figure(server, "loop_last_tick_age_seconds", "watch") > 2.5
        assert server.process.wait(30) == EXIT_STOOD_STILL
        log = server.log.read_text()
        assert "ncclwatch-server ends with code 4, to be started again" in log
        assert "in stuck" in log  # where it stands


def test_an_event_loop_that_is_blocked_is_told_with_its_line_and_ends_the_process(
    tmp_path: Path, receiver: Receiver
) -> None:
    with sabotaged(tmp_path, "event loop is blocked", receiver) as (server, when):
        when.touch()
        with pytest.raises(httpx2.HTTPError):  # health turns bad before the process ends: nobody answers
            while server.process.poll() is None:
                httpx2.get(f"{server.url}/healthz", timeout=1.0)
        until(lambda: "the loop 'watch' has not finished a round for" in server.log.read_text(), what="its line")
        assert "in spin" in server.log.read_text()
        assert server.process.wait(30) == EXIT_STOOD_STILL


@pytest.mark.parametrize(
    ("sabotage", "name"),
    [("watch is cancelled", "watch"), ("pages is cancelled", "pages"), ("notifier hangs", "notifier")],
)
def test_a_loop_that_does_not_come_back_ends_the_process(
    tmp_path: Path, receiver: Receiver, sabotage: str, name: str
) -> None:
    with sabotaged(tmp_path, sabotage, receiver) as (server, when):
        when.touch()
        with contextlib.suppress(Exception), FakeAgent(server.url) as agent:  # it loses its server
            agent.hang(1)
            server.process.wait(30)
        assert server.process.wait(30) == EXIT_STOOD_STILL
        log = server.log.read_text()
        assert re.search(
            rf"the loop '{name}' has not finished a round for \d+ s: ncclwatch-server ends with code 4", log
        )


def test_a_watch_that_is_begun_anew_in_vain_is_told_by_its_last_round(tmp_path: Path, receiver: Receiver) -> None:
    with sabotaged(tmp_path, "watch dies for long", receiver) as (server, when):
        when.touch()
        until(lambda: server.get("/healthz").status_code == 503, what="a server that says so")
        said = loop(server, "watch")
        assert said["restarts"] < 8  # each is half a second after the one before, and it must be said after 2.5 s
        assert server.process.wait(30) == EXIT_STOOD_STILL


def test_a_program_that_exits_in_one_job_leaves_the_others_watched(tmp_path: Path, receiver: Receiver) -> None:
    with sabotaged(tmp_path, "look dies by exit", receiver) as (server, when), FakeAgent(server.url) as agent:
        until(lambda: agent.progress > 1)
        when.touch()
        until(lambda: "looking at job job failed; it is looked at again" in server.log.read_text())
        agent.hang(1)
        until(lambda: receiver.taken, what="an alert")
        assert loop(server, "watch")["restarts"] == 0


def test_a_server_that_ends_by_an_error_of_its_own_exits_with_a_code(tmp_path: Path, receiver: Receiver) -> None:
    with sabotaged(tmp_path, "timer dies by exit", receiver) as (server, when):
        when.touch()
        code = -1
        with contextlib.suppress(Exception), FakeAgent(server.url):  # it loses its server
            code = server.process.wait(30)
        assert code == EXIT_STOOD_STILL
        assert "SystemExit" in server.log.read_text()


def test_a_watch_that_dies_again_and_again_ends_the_process(tmp_path: Path, receiver: Receiver) -> None:
    with sabotaged(tmp_path, "watch dies always", receiver) as (server, when):
        when.touch()
        assert server.process.wait(30) == EXIT_STOOD_STILL
        log = server.log.read_text()
        assert log.count("Traceback") == 1
        assert "the loop 'watch' has ended again and again" in log


@pytest.mark.parametrize(
    ("sabotage", "name"),
    [("pages hangs", "pages"), ("store hangs", "store"), ("records hangs", "records"), ("desk hangs", "desk")],
)
def test_any_other_loop_that_hangs_is_told_and_jobs_are_judged_on(
    tmp_path: Path, receiver: Receiver, sabotage: str, name: str
) -> None:
    with sabotaged(tmp_path, sabotage, receiver) as (server, when):
        when.touch()
        ask_for_what_may_never_come(server)
        until(lambda: loop(server, name)["stands_still"], what=f"{name} standing still")
        until(lambda: f"the loop '{name}' has not finished a round for" in server.log.read_text())
        assert figure(server, "loop_last_tick_age_seconds", name) > 2.5
        assert server.get("/healthz").status_code == 200
        with FakeAgent(server.url) as agent:
            agent.hang(1)
            until(lambda: receiver.taken, what="an alert")
        assert server.process.poll() is None


def ask_for_what_may_never_come(server: ServerProcess) -> None:
    try:
        httpx2.get(f"{server.url}/api/v1/jobs", timeout=0.5)
    except httpx2.TimeoutException:
        return


def test_a_server_that_cannot_know_whether_it_is_needed_ends_with_a_code() -> None:
    async def broken() -> None:
        raise ValueError("no pidfd")

    server = uvicorn_server.SeatedServer(uvicorn.Config("nothing:app"), Crowd(100), None)
    asyncio.run(uvicorn_server._then_stop(server, broken()))
    assert (server.should_exit, server.blind) == (True, True)


@pytest.mark.parametrize(("ending", "blind"), [(False, True), (True, False)])
def test_a_server_whose_end_nobody_waits_for_any_more_ends_with_a_code(ending: bool, blind: bool) -> None:
    server = uvicorn_server.SeatedServer(uvicorn.Config("nothing:app"), Crowd(100), None)
    server.should_exit = ending

    async def main() -> None:
        task = asyncio.create_task(uvicorn_server._then_stop(server, asyncio.Event().wait()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert (server.should_exit, server.blind) == (True, blind)
