"""Views of ranks are read beside the event loop: in order, bounded, and only for the job that they were sent of."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from starlette.datastructures import Headers

from ncclwatch.contract import config, wire
from ncclwatch.contract.errors import WireError
from ncclwatch.contract.model.rank import StackDump
from ncclwatch.contract.network.tokens import Bounds
from ncclwatch_server import limits
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.incidents.book import IncidentBook
from ncclwatch_server.ingest.agent_news import AgentNews
from ncclwatch_server.ingest.contact import LineContact
from ncclwatch_server.ingest.host_names import HostNames
from ncclwatch_server.ingest.session import UNREAD_MAX, Door
from ncclwatch_server.jobs.job import Job
from ncclwatch_server.judge import judge
from ncclwatch_server.security.scopes import Access, Caller
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch
from tests.unit.server.server_values import digest, view

HELLO = wire.Hello(protocol=config.PROTOCOL, agent="a", host="h", version="1")


class Line:
    """The server's end of a connection."""

    def __init__(self) -> None:
        self.talks, self.blocked, self.heard = True, False, True
        self.pauses = self.resumes = 0
        self.sent: list[bytes] = []
        self.last_words = b""
        self.held, self.peer = 0, "10.0.0.7"
        self.contact = LineContact(None, lambda: None)

    def admit(self) -> None:
        """Let longer messages come."""

    def hold(self, size: int) -> None:
        self.held += size

    def pause(self) -> None:
        self.pauses += 1

    def resume(self) -> None:
        self.resumes += 1

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def dismiss(self, last_words: bytes, code: int) -> None:
        self.talks, self.last_words = False, last_words


def announce(job: str, index: int = 0) -> bytes:
    said = wire.Announce(
        index=index, job=job, instance="i", attempt=0, world_size=2, ranks=(0, 1), terminal=False
    )  # fmt: skip
    return wire.encode(said)


class Scene:
    """An agent with one job, whose views wait to be read until they may."""

    def __init__(self) -> None:
        self.watch = Watch(judge, IncidentBook(()), NoStore())
        self.door, self.line = Door(self.watch, Access(())), Line()
        self.session = self.door.meet(self.line, Headers({}))  # type: ignore[arg-type]
        self.session.begin()
        self.say(wire.encode(HELLO))
        self.say(announce("first"))
        self.may = threading.Event()
        self.door.desk.begin(self.may.wait)

    def say(self, data: bytes) -> None:
        self.session.take(data, text=True)

    def say_views(self, *pids: int) -> None:
        for pid in pids:
            self.say(wire.encode(wire.Views(index=0, ranks=(replace(view(0), pid=pid), replace(view(1), pid=pid)))))

    async def read(self) -> None:
        self.may.set()
        for _ in range(2):  # what waited for a long message is read after it
            await asyncio.wait_for(self.door.desk.begin(int), 10)  # the last in the line
            await asyncio.sleep(0)

    def job(self, name: str) -> Job:
        found = self.watch.jobs.get(name)
        assert found is not None
        return found

    def pids(self, name: str) -> set[int]:
        return {held.view.pid for held in self.job(name).inspection._views.values()}


def played(scene: Callable[[Scene], None]) -> Scene:
    async def play() -> Scene:
        made = Scene()
        try:
            scene(made)
            await made.read()
            return made
        finally:
            made.may.set()
            made.door.close()

    return asyncio.run(play())


def test_views_are_read_in_their_order_and_nothing_more_is_taken_while_too_many_wait() -> None:
    def some(scene: Scene) -> None:
        scene.say_views(*range(1, UNREAD_MAX))
        assert scene.line.pauses == 0
        scene.say_views(UNREAD_MAX, UNREAD_MAX + 1)
        assert (scene.line.pauses, scene.line.resumes) == (1, 0)
        assert scene.pids("first") == set()

    scene = played(some)
    assert (scene.line.pauses, scene.line.resumes) == (1, 1)
    assert scene.pids("first") == {UNREAD_MAX + 1}
    assert scene.line.talks


def test_what_is_long_is_decoded_beside_the_event_loop_and_what_follows_waits() -> None:
    long = wire.encode(wire.Stacks(index=0, dumps=tuple(StackDump(rank=0, failure="x" * 1000) for _ in range(100))))
    assert len(long) > limits.PLAIN_BYTES_MAX

    def some(scene: Scene) -> None:
        scene.say(long)
        scene.say(announce("second", 1))
        assert scene.line.pauses == 1 and scene.line.held > len(long)
        assert scene.watch.jobs.get("second") is None  # the thread is busy: nothing was read

    scene = played(some)
    assert scene.line.resumes == 1 and scene.line.held == 0
    assert scene.job("second")


def test_views_of_a_job_whose_number_another_one_has_by_now_are_dropped() -> None:
    def other(scene: Scene) -> None:
        scene.say_views(7)
        scene.say(announce("second"))

    scene = played(other)
    assert (scene.pids("first"), scene.pids("second")) == (set(), set())


def test_what_came_before_the_line_ended_is_read_and_nothing_is_sent_on_it() -> None:
    def broken(scene: Scene) -> None:
        (served,) = scene.job("first").served.values()
        served.link.command(wire.CommandKind.INSPECT, 0)
        scene.say_views(7)
        scene.line.talks = False
        scene.session.ended()
        served.link.command(wire.CommandKind.INSPECT, 0)
        assert scene.watch.agents == 1  # until its views are read, its ranks are not lost

    scene = played(broken)
    assert scene.pids("first") == {7}
    assert scene.watch.agents == 0
    kinds = [type(wire.decode_from_server(data)) for data in scene.line.sent]
    assert kinds == [wire.Welcome, wire.Command]


def test_a_long_message_and_what_follows_it_are_read_after_the_line_ended() -> None:
    def broken(scene: Scene) -> None:
        scene.say(wire.encode(wire.Stacks(index=0, dumps=(StackDump(rank=0, failure="x" * limits.PLAIN_BYTES_MAX),))))
        scene.say_views(7)
        scene.say(announce("second", 1))
        scene.line.talks = False
        scene.session.ended()

    scene = played(broken)
    assert scene.pids("first") == {7}
    assert scene.watch.jobs.get("second") is not None
    assert (scene.watch.agents, scene.line.held) == (0, 0)


def test_nothing_is_read_of_an_agent_that_was_refused() -> None:
    def refused(scene: Scene) -> None:
        scene.say_views(7)
        scene.say(b"{")
        scene.session.ended()  # as a line says it of itself when it is dismissed
        assert scene.watch.agents == 0

    scene = played(refused)
    assert scene.pids("first") == set()
    assert "no message of protocol" in msgspec.json.decode(scene.line.last_words)["reason"]


@pytest.mark.parametrize(
    ("views", "why"),
    [
        ('{"type":"views","index":0,"ranks":[{"rank":"x"}]}', "no message of protocol"),
        (wire.encode(wire.Views(index=0, ranks=(view(9),))).decode(), "outside of 0..1"),
    ],
)
def test_views_that_are_wrong_end_their_connection_though_they_are_read_later(views: str, why: str) -> None:
    scene = played(lambda scene: scene.say(views.encode()))
    assert why in msgspec.json.decode(scene.line.last_words)["reason"]


def test_stacks_that_came_in_parts_are_one_answer() -> None:
    dumps = tuple(StackDump(rank=rank, failure=f"{rank}") for rank in (0, 1))
    whole = wire.Stacks(index=0, dumps=dumps, reply_to=7)
    parts = [
        msgspec.structs.replace(whole, dumps=dumps[:1], more=True),
        msgspec.structs.replace(whole, dumps=dumps[1:]),
    ]
    assert wire.read_long(wire.encode(whole)) == whole

    async def play() -> None:
        made, heard = Scene(), []
        made.may.set()
        job = made.job("first")
        capture = SimpleNamespace(
            receive_stacks=lambda found, question: heard.append((tuple(found), question[1])) or True
        )
        job.captures.append(capture)  # type: ignore[arg-type]
        digest(job.state, 1, 0.0, {0: 0.0, 1: 0.0})
        made.say(wire.encode(wire.Stacks(index=0, dumps=dumps, reply_to=1)))
        assert heard == []  # nobody has asked
        (served,) = job.served.values()
        asked = served.link.command(wire.CommandKind.STACKS, 0)
        for part in parts:
            made.say(wire.encode(msgspec.structs.replace(part, reply_to=asked)))
        assert heard == [(dumps, asked)]

    asyncio.run(play())


TEAM = Bounds(namespaces=("team",))


def test_one_bound_token_does_not_take_the_connections_of_all_others() -> None:
    door = Door(Watch(judge, IncidentBook(()), NoStore()), Access(()))
    door.agents_max = 4
    hellos = wire.encode(HELLO)
    greedy, other = Caller(name="a", holder="a", bounds=TEAM), Caller(name="b", holder="b", bounds=TEAM)
    door._by_holder["a"] = 2
    with pytest.raises(WireError, match="already hears 2 agents with the token of a, as many as one bound token may"):
        door.welcome(hellos, greedy)
    assert door.welcome(hellos, other).host == "h"
    door._by_holder[""] = 3
    assert door.welcome(hellos, Caller(name="anyone")).host == "h"
    door.close()


def test_the_same_word_of_an_agent_is_another_agent_with_another_token() -> None:
    door = Door(Watch(judge, IncidentBook(()), NoStore()), Access(()))
    said = [door.welcome(wire.encode(HELLO), Caller(name=name, holder=name)).agent for name in ("a", "b", "a")]
    assert said[0] == said[2] != said[1]
    door.close()


def test_a_verdict_names_a_host_as_it_is_shown_and_not_as_a_view_says() -> None:
    names = HostNames([("b", Bounds(hosts=("h",)))])
    caller = Caller(name="a", holder="a")
    link = Link(number=1, agent="x", host="h~a", said_host="h", version="1", caller=caller)
    news = AgentNews(link=link, watch=Watch(judge, IncidentBook(()), NoStore()), host_names=names)
    assert [news._shown(replace(view(0), host=host)).host for host in ("h", "other")] == ["h~a", "other"]
    names.enter(Link(number=2, agent="y", host="other", version="1", caller=Caller(name="c", holder="c")))
    assert news._shown(replace(view(0), host="other")).host == "other~a"
