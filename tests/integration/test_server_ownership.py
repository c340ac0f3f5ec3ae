"""Of a rank only the connection that owns it may speak: every kind of news, from everybody who does not own it.

Each case asks the real server over the real wire, and compares what it says of the victim with what it said before.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from websockets.sync.client import ClientConnection

from ncclwatch.contract import digests, wire
from ncclwatch.contract.model.preflight import RankFacts
from ncclwatch.contract.model.rank import Ending, ProcessState, ProcessView, RankView, StackDump, StackFrame
from ncclwatch.contract.model.testimony import Testimony
from tests.integration.fake_agent import FakeAgent, hello, open_line, reply, until
from tests.integration.server_process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROW = (0, 0, 1, 1, 0, 0.1, 900.0, 1, 1, 1, *digests.NO_WAIT, *digests.NO_FACTS)  # it has ended, and waited for long
CRASHED = Ending(kind="crashed", exit_code=1, exception="RuntimeError: forged")
LINE = StackFrame(function="forged", file="/evil.py", line=6)


def forged_view(rank: int) -> RankView:
    return RankView(
        rank=rank, local_rank=rank, host="evil", pid=666, device="cpu", world_size=2, local_world_size=2, attempt=0,
        process=ProcessView(state=ProcessState.GONE), pulse_age_s=900.0, initialised=True, ending=CRASHED,
    )  # fmt: skip


def forged_facts(index: int) -> wire.Facts:
    """All that may differ does: another backend, and ranks that have come to the rendezvous elsewhere."""
    odd = wire.Alike(ranks=(0,), facts=RankFacts(values=(("backend", "forged"),)))
    return wire.Facts(index=index, alike=(odd,), joined=(0, 1), twice=(0, 1))


NEWS: dict[str, Callable[[int], wire.AgentMessage | bytes]] = {
    "announce": lambda index: victims(index=index, ranks=(0, 1)),
    "digest": lambda index: digests.pack_digest(index, [ROW, (1, *ROW[1:])], [(0, 900.0, 1, 2, 5, 1, 3)]),
    "views": lambda index: wire.Views(index=index, ranks=(forged_view(0), forged_view(1))),
    "stacks": lambda index: wire.Stacks(
        index=index, dumps=(StackDump(rank=0, threads=(("MainThread", (LINE,)),)),), reply_to=1
    ),
    "testimonies": lambda index: wire.Testimonies(
        index=index, ranks=(Testimony(rank=0, failure="forged"),), reply_to=1
    ),
    "loops": lambda index: wire.Loops(
        index=index, ranks=tuple(wire.Loop(rank, "forged.py:1", 1, 5, 5 + rank, True, False) for rank in (0, 1))
    ),
    "facts": forged_facts,
    "parameters": lambda index: wire.Parameters(index=index, key=("DDP", "0-1"), ranks=((0, ("forged",)),)),
    "gone": lambda index: wire.Gone(index=index),
}  # fmt: skip


def victims(index: int = 0, ranks: tuple[int, ...] = ()) -> wire.Announce:
    return wire.Announce(
        index=index, job="victim", instance="host:29500", attempt=0, world_size=2, ranks=ranks, terminal=True
    )


def bystanders(ranks: tuple[int, ...] = (0, 1)) -> wire.Announce:
    return wire.Announce(
        index=3, job="other", instance="host:1", attempt=0, world_size=2, ranks=ranks, terminal=False
    )  # fmt: skip


def an_agent_of_no_job(say: Callable[[wire.AgentMessage | bytes], None]) -> int:
    say(victims())
    return 0


def an_agent_of_another_job(say: Callable[[wire.AgentMessage | bytes], None]) -> int:
    say(bystanders())
    say(victims())
    return 0


def an_agent_that_claims_the_ranks(say: Callable[[wire.AgentMessage | bytes], None]) -> int:
    say(victims(ranks=(0, 1)))
    return 0


def an_agent_that_reports_them_too(say: Callable[[wire.AgentMessage | bytes], None]) -> int:
    say(victims(ranks=(0, 1)))
    say(digests.pack_digest(0, [ROW, (1, *ROW[1:])], []))
    return 0


SENDERS = {
    each.__name__: each
    for each in (
        an_agent_of_no_job, an_agent_of_another_job, an_agent_that_claims_the_ranks, an_agent_that_reports_them_too
    )
}  # fmt: skip


class Stage:
    """A server with a job that trains, of which nothing is wrong."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self.server = server
        self.one = stack.enter_context(FakeAgent(server.url, job="victim", ranks=(0,), agent="n1", host="node1"))
        self.two = stack.enter_context(FakeAgent(server.url, job="victim", ranks=(1,), agent="n2", host="node2"))
        until(lambda: self.ranks() == [("moving", "node1"), ("moving", "node2")], what="both ranks report")

    def ranks(self) -> list[tuple[str, str]]:
        found = self.server.get("/api/v1/jobs/victim/ranks").json()
        return [(each["state"], each["host"]) for each in found.get("ranks", [])]

    def told(self) -> dict[str, object]:
        """Return all that the server says of the job and a change would show, but for figures that move."""
        job = self.server.job("victim")
        names = ("id", "attempt", "state", "world_size", "ranks_seen", "ranks_ended", "waiting", "open_incidents")
        kept = {name: job[name] for name in names}
        jobs = [each["id"] for each in self.server.get("/api/v1/jobs").json() if each["name"] == "victim"]
        nodes = [(each["host"], each["ranks"], each["connected"]) for each in job["nodes"]]
        incidents = [each for each in self.server.incidents() if each["job"].startswith("victim")]
        return {**kept, "jobs": jobs, "nodes": nodes, "ranks": self.ranks(), "incidents": incidents}

    def a_few_looks(self) -> None:
        before = self.one.progress
        until(lambda: self.one.progress > before + 5)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with ExitStack() as stack:
        program = "tests.integration.pages_server"
        server = stack.enter_context(ServerProcess(tmp_path_factory.mktemp("owner"), program=program))
        yield Stage(server, stack)


def sender(url: str, host: str) -> ClientConnection:
    line = open_line(url)
    hello(line, agent="evil", host=host)
    assert isinstance(reply(line), wire.Welcome)
    return line


@pytest.mark.parametrize("who", SENDERS)
@pytest.mark.parametrize("kind", NEWS)
def test_news_of_ranks_that_another_connection_owns_changes_nothing(stage: Stage, kind: str, who: str):
    before = stage.told()
    with sender(stage.server.url, "node1") as line:

        def say(message: wire.AgentMessage | bytes) -> None:
            line.send(message if isinstance(message, bytes) else wire.encode(message).decode())

        say(NEWS[kind](SENDERS[who](say)))
        stage.a_few_looks()
        assert stage.told() == before
    assert not stage.one.refused


def test_an_agent_that_does_not_say_which_one_it_is_is_refused(stage: Stage):
    with open_line(stage.server.url) as line:
        hello(line, agent="", host="node9")
        assert reply(line) == wire.Refused(reason="the agent on node9 does not say which one it is")
