"""A real server process, an agent over a real WebSocket: from a hang to its incident and its end."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.wire import CommandKind
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration

CRASH = Ending(kind="crashed", exit_code=1, exception="ValueError: no")
TERMINATED = Ending(kind="signalled", signal=15)
FINISHED = Ending(kind="exited", exit_code=0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as process:
        yield process


def test_a_healthy_job_has_no_incident_and_is_not_inspected(server: ServerProcess) -> None:
    with FakeAgent(server.url) as agent:
        until(lambda: agent.progress > 8)
        assert server.job()["state"] == "running"
        assert server.job()["ranks_seen"] == 2
        assert not agent.commands
        assert server.incidents() == []


def test_a_hang_becomes_one_incident_with_stacks_and_is_printed_once(server: ServerProcess) -> None:
    with FakeAgent(server.url, terminal=True) as agent:
        until(lambda: agent.progress > 3)
        began = time.monotonic()
        agent.hang(1)
        until(lambda: agent.asked(CommandKind.PRINT))
        took_s = time.monotonic() - began
        assert took_s < 5.0
        (incident,) = server.incidents()
        assert incident["state"] == "open"
        assert incident["culprits"][0]["rank"] == 0
        assert incident["culprits"][0]["call_site"] == {
            "file": "/home/user/train.py", "line": 17, "function": "train",
        }  # fmt: skip
        assert incident["victims"] == [1]
        assert 1.0 < incident["onset_to_open_s"] <= took_s + 0.1
        assert [stack["ranks"] for stack in incident["stacks"]] == [[0], [1]]
        assert server.job()["state"] == "hung"
        assert server.job()["open_incidents"] == [incident["id"]]
        (printed,) = agent.asked(CommandKind.PRINT)
        assert printed.text.startswith("ncclwatch: CRITICAL rank 0 did not enter all_reduce\n")
        assert "/home/user/train.py:17" in printed.text
        inspected = len(agent.asked(CommandKind.INSPECT))
        until(lambda: len(agent.asked(CommandKind.INSPECT)) > inspected + 2)
        assert len(server.incidents()) == 1
        assert len(agent.asked(CommandKind.PRINT)) == 1


def test_a_hang_that_ends_is_resolved_and_the_same_hang_opens_the_same_incident_again(
    server: ServerProcess,
) -> None:
    with FakeAgent(server.url) as agent:
        agent.hang(1)
        until(lambda: server.job().get("state") == "hung")
        agent.go_on()
        until(lambda: [i["state"] for i in server.incidents()] == ["resolved"])
        assert server.job()["state"] == "running"
        agent.hang(1)
        until(lambda: [i["state"] for i in server.incidents()] == ["open"])


def test_an_incident_does_not_wait_for_stacks_that_never_come(server: ServerProcess) -> None:
    with FakeAgent(server.url) as agent:
        agent.answers_stacks = False
        agent.hang(1)
        until(lambda: server.incidents(), timeout_s=6.0)
        (incident,) = server.incidents()
        assert incident["stacks"] == []


def test_a_job_that_dies_of_a_hang_keeps_its_incident_and_gets_no_second(server: ServerProcess) -> None:
    with FakeAgent(server.url) as agent:
        agent.hang(1)
        until(lambda: server.job().get("state") == "hung")
        agent.end(0, TERMINATED)
        agent.end(1, TERMINATED)
        agent.gone()
        until(lambda: server.job()["state"] == "ended")
        (incident,) = server.incidents()
        assert incident["cause"] == "rank_conditional_collective"
        assert incident["state"] == "ended"


def test_a_crash_is_known_as_soon_as_all_ranks_have_ended(server: ServerProcess) -> None:
    with FakeAgent(server.url) as agent:
        until(lambda: agent.progress > 2)
        agent.end(0, CRASH)
        agent.end(1, TERMINATED)
        agent.gone()
        until(lambda: server.job()["state"] == "ended", timeout_s=3.0)
        (incident,) = server.incidents()
        assert (incident["cause"], incident["state"]) == ("rank_crashed", "ended")


def test_a_job_that_finishes_leaves_no_incident(server: ServerProcess) -> None:
    with FakeAgent(server.url) as agent:
        until(lambda: agent.progress > 2)
        agent.end(0, FINISHED)
        agent.end(1, FINISHED)
        agent.gone()
        until(lambda: server.job()["state"] == "ended", timeout_s=3.0)
        assert server.incidents() == []


def test_a_server_restarted_in_the_middle_of_a_hang_knows_the_same_incident(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'incidents.db'}"
    with ServerProcess(tmp_path, store=store) as first:
        with FakeAgent(first.url, terminal=True) as agent:
            agent.hang(1)
            until(lambda: agent.asked(CommandKind.PRINT))
            (before,) = first.incidents()
            waiting = dict(agent.waiting)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        port = first.port
    with ServerProcess(tmp_path, store=store, port=port) as second:
        assert [i["id"] for i in second.incidents()] == [before["id"]]
        with FakeAgent(second.url, terminal=True) as agent:
            agent.waiting = waiting
            until(lambda: len(agent.asked(CommandKind.INSPECT)) > 6)
            (after,) = second.incidents()
            assert after["id"] == before["id"]
            assert after["state"] == "open"
            assert after["opened_at"] == before["opened_at"]
            assert second.job()["state"] == "hung"
            assert not agent.asked(CommandKind.PRINT)
            agent.go_on()
            until(lambda: [i["state"] for i in second.incidents()] == ["resolved"])


def test_an_agent_that_vanishes_in_a_hang_does_not_end_the_incident(server: ServerProcess) -> None:
    with FakeAgent(server.url) as agent:
        agent.hang(1)
        until(lambda: server.job().get("state") == "hung")
    until(lambda: not server.job()["nodes"][0]["connected"])
    until(lambda: server.job()["nodes"][0]["quiet_s"] > 4.0)
    assert server.job()["state"] == "hung"


def test_two_launches_of_one_name_are_two_jobs_and_the_user_is_told(server: ServerProcess) -> None:
    with FakeAgent(server.url) as one, FakeAgent(server.url, instance="other:1", agent="a2") as two:
        until(lambda: one.progress > 2 and two.progress > 2)
        names = [job["id"] for job in server.get("/api/v1/jobs").json()]
        assert len(names) == 2
        assert names[0] == "job"
        assert names[1].startswith("job~")
        assert "NCCLWATCH_JOB" in server.job()["notices"][0]
        two.hang(1)
        until(lambda: server.job(names[1])["state"] == "hung")
        assert server.job("job")["state"] == "running"


def test_a_new_attempt_takes_the_place_of_the_old_one(server: ServerProcess) -> None:
    with FakeAgent(server.url) as old:
        old.hang(1)
        until(lambda: server.job().get("state") == "hung")
        old.end(0, TERMINATED)
        old.end(1, TERMINATED)
        with FakeAgent(server.url, attempt=1) as new:
            until(lambda: server.job()["attempt"] == 1 and new.progress > 2)
            until(lambda: [i["state"] for i in server.incidents()] == ["ended"])
            assert server.job()["state"] == "running"
