"""What finds no room, or is not allowed, is refused alone: the other jobs of its node and of the server go on."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.sync.client import ClientConnection

from ncclwatch.contract import digests, wire
from ncclwatch.contract.groups import group_key, name_key
from ncclwatch.contract.ring.members import digest_of_all
from ncclwatch_server import limits
from tests.integration.fake_agent import FakeAgent, hello, open_line, reply, until
from tests.integration.server_process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def announce(index: int, job: str, **changes: object) -> wire.Announce:
    values: dict[str, object] = {"instance": "i", "attempt": 0, "world_size": 2, "ranks": (0, 1), "terminal": False}
    return wire.Announce(index=index, job=job, **{**values, **changes})  # type: ignore[arg-type]


def say(line: ClientConnection, *messages: wire.AgentMessage) -> None:
    for message in messages:
        line.send(wire.encode(message).decode())


def agent(server: ServerProcess, name: str, host: str, token: str = "") -> ClientConnection:
    line = open_line(server.url, token)
    hello(line, agent=name, host=host)
    return line


def value(server: ServerProcess, series: str) -> float:
    lines = server.get("/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{series} "))


def test_a_job_beyond_the_limit_of_its_connection_is_refused_and_the_others_are_watched(tmp_path: Path):
    with ServerProcess(tmp_path) as server, FakeAgent(server.url, job="bystander") as bystander:
        with agent(server, "many", "node9") as line:
            assert isinstance(reply(line), wire.Welcome)
            say(line, *(announce(index, f"job{index}") for index in range(limits.JOBS_PER_AGENT_MAX + 1)))
            said = reply(line)
            assert isinstance(said, wire.JobRefused)
            assert (said.index, "no room for job job64" in said.reason) == (64, True)
            say(line, wire.Gone(index=64), wire.Gone(index=0), announce(65, "job65"))
            until(lambda: server.job("job65"), what="a job has ended, and makes room for another one")
        assert value(server, "ncclwatch_jobs_refused_total") == 1
        assert value(server, "ncclwatch_jobs_limit") == limits.JOBS_MAX
        assert not bystander.refused


def test_announcements_without_ranks_do_not_fill_the_server(tmp_path: Path):
    with ServerProcess(tmp_path) as server, ExitStack() as stack:
        for number in range(8):
            line = stack.enter_context(agent(server, f"empty{number}", f"node{number}"))
            assert isinstance(reply(line), wire.Welcome)
            say(line, announce(0, f"empty{number}", world_size=limits.RANKS_MAX, ranks=()))
        true = stack.enter_context(FakeAgent(server.url, job="true", agent="t"))
        until(lambda: server.job("true") and server.job("empty7"))
        assert server.job("true")["ranks_seen"] == 2
        assert not true.refused
        assert value(server, "ncclwatch_jobs_refused_total") == 0


def test_a_token_brings_news_of_its_own_jobs_from_its_own_hosts_only(tmp_path: Path):
    environ = {"NCCLWATCH_AGENT_TOKEN": "bound-to-team-a name=team-a namespace=team-a host=gpu-a-*"}
    with ServerProcess(tmp_path, token="everything-is-open-here", environ=environ) as server:
        with agent(server, "elsewhere", "gpu-b-1", "bound-to-team-a") as line:
            said = reply(line)
            assert isinstance(said, wire.Refused)
            assert "bound to namespace=team-a host=gpu-a-*, and the agent says that it is on 'gpu-b-1'" in said.reason
        with agent(server, "here", "gpu-a-1", "bound-to-team-a") as line:
            assert isinstance(reply(line), wire.Welcome)
            say(line, announce(1, "team-b/llm"), announce(2, "team-a/llm"))
            refused = reply(line)
            assert isinstance(refused, wire.JobRefused)
            assert (refused.index, "does not allow job 'team-b/llm'" in refused.reason) == (1, True)
            until(lambda: server.job("team-a/llm"))
            assert not server.job("team-b/llm")


def test_a_higher_attempt_from_a_stranger_ends_no_job(tmp_path: Path):
    with ServerProcess(tmp_path) as server, FakeAgent(server.url) as one:
        until(lambda: one.progress > 2 and server.job())
        with agent(server, "evil", "node1") as line:
            assert isinstance(reply(line), wire.Welcome)
            say(line, announce(0, "job", instance="host:29500", attempt=2**31 - 1))
            until(lambda: server.job()["notices"])
            listed = server.get("/api/v1/jobs").json()
        assert [each["attempt"] for each in listed] == [0, 2**31 - 1]
        assert listed[0]["id"] == "job"
        one.hang(1)
        until(lambda: [each for each in server.incidents() if each["job"] == "job"], what="it is still watched")


def send_digests(line: ClientConnection, jobs: range) -> None:
    """Announce jobs of two ranks, and let each say once that it trains."""
    say(line, *(announce(job, f"job{job}") for job in jobs))
    key = group_key("0", digest_of_all(2))
    for job in jobs:
        ranks = [(rank, 0, 0, 1, 0, 0.1, 0.0, 5, 5, 5, *digests.NO_WAIT, *digests.NO_FACTS) for rank in (0, 1)]
        line.send(digests.pack_digest(job, ranks, [(rank, 0.0, key, 5, 7, 0, name_key("0")) for rank in (0, 1)]))


def test_three_hundred_jobs_are_all_watched_and_a_hang_of_the_last_one_is_told(tmp_path: Path):
    with ServerProcess(tmp_path) as server, ExitStack() as stack:
        for first in range(0, 300, 60):
            line = stack.enter_context(agent(server, f"many{first}", f"node{first}"))
            assert isinstance(reply(line), wire.Welcome)
            send_digests(line, range(first, first + 60))
        last = stack.enter_context(FakeAgent(server.url, job="last", agent="last", host="node301"))
        until(lambda: value(server, 'ncclwatch_jobs{state="running"}') == 301, what="all jobs are watched")
        assert server.job("job299")["ranks_seen"] == 2
        last.hang(0)
        until(server.incidents, what="the hang is told")
        assert [(each["job"], each["state"]) for each in server.incidents()] == [("last", "open")]
        assert not last.refused
        assert value(server, "ncclwatch_jobs_refused_total") == 0


TEAM_A, TEAM_B = "team-a-0123456789abcdef", "team-b-0123456789abcdef"
TEAMS = f"{TEAM_A} name=team-a namespace=team-a jobs=300\n{TEAM_B} name=team-b namespace=team-b host=gpu-b-*"
VIEWER = "everything-is-open-here"


def announced(stack: ExitStack, server: ServerProcess, job: str, size: int) -> str:
    """Announce all ranks of a big job with the token of team A. Returns why it was refused, "" if it was not."""
    line = stack.enter_context(agent(server, job, "gpu-a-1", TEAM_A))
    assert isinstance(reply(line), wire.Welcome)
    say(line, announce(0, job, world_size=size, ranks=tuple(range(size))), announce(1, "none/of theirs"))
    answers = [reply(line)]
    while answers[-1].index != 1:  # type: ignore[union-attr]
        answers.append(reply(line))
    return answers[0].reason if len(answers) == 2 else ""  # type: ignore[union-attr]


def test_what_one_bound_token_announces_takes_no_place_from_another(tmp_path: Path):
    tokens = {"NCCLWATCH_AGENT_TOKEN": TEAMS}
    with ServerProcess(tmp_path, token=VIEWER, environ=tokens) as server, ExitStack() as stack:
        for first in range(0, limits.JOBS_PER_HOST_MAX, 64):
            greedy = stack.enter_context(agent(server, f"greedy{first}", "gpu-b-1", TEAM_A))
            assert isinstance(reply(greedy), wire.Welcome)
            say(greedy, *(announce(index, f"team-a/job{first + index}") for index in range(64)))
        until(lambda: value(server, 'ncclwatch_jobs{state="running"}') == limits.JOBS_PER_HOST_MAX)
        size = (limits.RANKS_TOTAL_MAX - 2 * limits.JOBS_PER_HOST_MAX) // 4
        refused = [announced(stack, server, f"team-a/vast{number}", size) for number in range(4)]
        own = stack.enter_context(FakeAgent(server.url, job="team-b/run", host="gpu-b-1", token=TEAM_B))
        until(lambda: own.progress > 2 and server.job("team-b%2Frun"))
        assert (server.job("team-b%2Frun")["ranks_seen"], own.refused) == (2, "")
        hosts = {node["host"] for name in ("team-b%2Frun", "team-a%2Fjob0") for node in server.job(name)["nodes"]}
        assert hosts == {"gpu-b-1", "gpu-b-1~team-a"}
        assert all("agents with the token of team-a have announced 512 ranks" in reason for reason in refused)
