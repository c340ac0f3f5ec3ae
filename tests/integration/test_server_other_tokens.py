"""A bound token's holder must not speak for ranks that are not its own, nor rename or push out what is another's."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import httpx2
import pytest

from ncclwatch.contract import wire
from tests.integration.fake_agent import FakeAgent, open_line, reply, until
from tests.integration.hostile_lines import READER, TEAM_B, admitted, announce
from tests.integration.server_process import ServerProcess
from tests.integration.test_server_ownership import forged_view

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ALICE, BOB, CAROL = "alice-0123456789abcdef", "bob-0123456789abcdef", "carol-0123456789abcdef"
TOKENS = {
    "NCCLWATCH_AGENT_TOKEN": "\n".join(
        (
            f"{ALICE} name=alice namespace=team-a host=gpu-a-1,gpu-a-2",
            f"{BOB} name=bob namespace=team-a",
            f"{CAROL} name=carol jobs=5 ranks=100",
            f"{TEAM_B} name=team-b namespace=team-b",
        )
    )
}


@pytest.fixture
def server(tmp_path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, token=READER, environ=TOKENS) as process:
        yield process


def states(server: ServerProcess, job: str) -> list[str]:
    return [each["state"] for each in server.get(f"/api/v1/jobs/{job}/ranks").json()["ranks"]]


def listed(server: ServerProcess, job: str) -> bool:
    headers = {"Authorization": f"Bearer {READER}"}
    return httpx2.get(f"{server.url}/api/v1/jobs/{job}", headers=headers, timeout=60).status_code == 200


def test_a_rank_that_somebody_else_said_had_ended_before_it_came_is_watched(server):
    with ExitStack() as stack:
        one = stack.enter_context(
            FakeAgent(server.url, job="team-a/run", token=ALICE, host="gpu-a-1", agent="one", ranks=(0,), world_size=3)
        )
        until(lambda: one.progress > 2 and server.job("team-a/run"))
        evil = stack.enter_context(admitted(server, BOB, "evil", "x"))
        evil.send(announce("team-a/run", instance="host:29500", world_size=3, ranks=(2,)))
        view = replace(forged_view(1), attached=False)
        evil.send(wire.encode(wire.Views(index=0, ranks=(view,))).decode())
        until(lambda: server.job("team-a/run")["ranks_ended"] == 1, what="the lie was heard")
        two = stack.enter_context(
            FakeAgent(server.url, job="team-a/run", token=ALICE, host="gpu-a-2", agent="two", ranks=(1,), world_size=3)
        )
        until(lambda: two.progress > 8)
        assert states(server, "team-a/run")[1] == "moving"


def test_a_token_that_is_bound_to_numbers_only_does_not_speak_in_the_namespace_of_another(server):
    with ExitStack() as stack:
        evil = stack.enter_context(admitted(server, CAROL, "evil", "x"))
        evil.send(announce("team-a/run", instance="other"))
        refused = reply(evil)
        assert isinstance(refused, wire.JobRefused)
        assert "namespace team-a belongs to the tokens that are bound to it" in refused.reason
        victim = stack.enter_context(
            FakeAgent(server.url, job="team-a/run", token=ALICE, host="gpu-a-1", agent="alice")
        )
        until(lambda: victim.progress > 4)
        assert [node["host"] for node in server.job("team-a/run")["nodes"]] == ["gpu-a-1"]


@pytest.mark.parametrize("name", ["gpu-a-1 ", "gpu-a-1\u3164", "gpu-\u0430-1", "gpu-a-1\u223calice"])
def test_a_host_of_another_token_is_not_shown_under_a_name_that_reads_as_one_of_ours(server, name):
    with ExitStack() as stack:
        stack.enter_context(FakeAgent(server.url, job="team-a/run", token=ALICE, host="gpu-a-1", agent="alice"))
        evil = stack.enter_context(
            FakeAgent(server.url, job="team-b/run", token=TEAM_B, host=name, agent="evil", machine="x")
        )
        until(lambda: evil.progress > 2 and server.job("team-b/run"))
        (node,) = server.job("team-b/run")["nodes"]
        assert node["host"].endswith("~team-b"), node["host"]


def test_who_shows_no_token_cannot_fill_the_log(server):
    before = server.log.stat().st_size
    for _ in range(500):
        line = open_line(server.url)
        assert isinstance(reply(line), wire.Refused)
        line.socket.close()
    lines = server.log.read_text()[before:].splitlines()
    assert len(lines) < 100, (len(lines), lines[-1])


def test_who_guesses_cannot_fill_the_log(server):
    before = server.log.stat().st_size
    lines = [open_line(server.url, f"wrong-{number}") for number in range(500)]
    for line in lines:
        line.socket.close()
    time.sleep(1)
    told = server.log.read_text()[before:].splitlines()
    assert len(told) < 100, (len(told), told[-1])


def test_who_claims_a_rank_again_and_again_cannot_fill_the_log(server):
    with ExitStack() as stack:
        one, two = (stack.enter_context(admitted(server, TEAM_B, name, "x", name)) for name in ("one", "two"))
        one.send(announce("team-b/run"))
        until(lambda: server.job("team-b/run"))
        before = server.log.stat().st_size
        for _ in range(2000):
            two.send(announce("team-b/run"))
        two.send(announce("not-theirs", 63))
        assert isinstance(reply(two), wire.JobRefused)
        told = server.log.read_text()[before:].splitlines()
    assert len(told) < 100, (len(told), told[-1])
