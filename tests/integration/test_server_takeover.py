"""Who speaks for ranks whose own agent is away: the same token on the same machine at once, nobody else for minutes."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ncclwatch.contract.model.rank import Ending
from tests.integration.fake_agent import FakeAgent, until
from tests.integration.server_process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

OPERATOR = "operator-0123456789abcdef"
TEAM_A, TEAM_B = "team-a-0123456789abcdef", "team-b-0123456789abcdef"
CRASHED = Ending(kind="crashed", exit_code=1, exception="RuntimeError: forged")
STRANGERS = {
    "another token": {"token": TEAM_B, "machine": "boot-1"},
    "another machine": {"token": TEAM_A, "machine": "boot-2"},
    "no machine": {"token": TEAM_A, "machine": ""},
    "another attempt": {"token": TEAM_B, "machine": "boot-1", "attempt": 1},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tokens = {
        "NCCLWATCH_AGENT_TOKEN": f"{TEAM_A} name=team-a\n{TEAM_B} name=team-b",
        "NCCLWATCH_OPERATOR_TOKEN": OPERATOR,
    }
    with ServerProcess(tmp_path_factory.mktemp("takeover"), token=OPERATOR, environ=tokens) as process:
        yield process


def trains(server: ServerProcess, stack: ExitStack, job: str, **changes: object) -> FakeAgent:
    known = {"token": TEAM_A, "machine": "boot-1", "agent": "first", **changes}
    agent = stack.enter_context(FakeAgent(server.url, job=job, instance=job, **known))  # type: ignore[arg-type]
    until(lambda: agent.progress > 2 and server.job(job))
    return agent


def states(server: ServerProcess, job: str) -> list[str]:
    return [each["state"] for each in server.get(f"/api/v1/jobs/{job}/ranks").json()["ranks"]]


def audited(server: ServerProcess, job: str) -> list[dict]:
    return server.get(f"/api/v1/audit?job={job}").json()["entries"]


def forges(stranger: FakeAgent) -> None:
    """Say that rank 0 has crashed, and go on until the server has had several looks at that."""
    stranger.end(0, CRASHED)
    before = stranger.progress
    until(lambda: stranger.progress > before + 8)


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_cannot_forge_an_incident_while_the_agent_of_the_ranks_is_away(
    server: ServerProcess, who: str
) -> None:
    job = f"victim-{list(STRANGERS).index(who)}"
    with ExitStack() as stack:
        owner = trains(server, stack, job)
        owner.leave()
        until(lambda: not server.job(job)["nodes"][0]["connected"], what="its line is lost")
        stranger = stack.enter_context(
            FakeAgent(server.url, job=job, instance=job, agent="evil", **STRANGERS[who])  # type: ignore[arg-type]
        )
        forges(stranger)
        until(lambda: states(server, job) == ["silent", "silent"], what="nothing is known of them")
        assert [each for each in server.incidents() if each["job"] == job] == []
        if "attempt" not in STRANGERS[who]:
            (line,) = audited(server, job)
            assert (line["act"], line["who"]) == ("claim", STRANGERS[who]["token"][:6])
            assert line["detail"].startswith("ranks 0-1, as the agent on node1; they belong to the agent on node1")
        back = trains(server, stack, job)
        until(lambda: states(server, job) == ["moving", "moving"], what="their own agent is believed at once")
        assert not back.refused


@pytest.mark.parametrize("machine", ["boot-1", ""], ids=["that says its machine", "of an older version"])
def test_an_agent_that_was_killed_and_started_again_speaks_for_its_ranks_at_once(
    server: ServerProcess, machine: str
) -> None:
    job = f"restarted-{machine or 'old'}"
    with ExitStack() as stack:
        trains(server, stack, job, machine=machine).leave()
        trains(server, stack, job, machine="boot-1", agent="second").hang(1)
        until(lambda: [each for each in server.incidents() if each["job"] == job], 4.0, "its hang is told")
        assert "claim" not in [each["act"] for each in audited(server, job)]
