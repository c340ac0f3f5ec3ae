"""Whatever pieces its bytes come in, an agent's message is taken once and whole; what breaks rules ends the line."""

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from starlette.datastructures import Headers
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from ncclwatch.contract import config
from ncclwatch_server import limits
from ncclwatch_server.ingest import websocket
from ncclwatch_server.ingest.line_budget import LineBudget
from ncclwatch_server.ingest.session import Door
from ncclwatch_server.ingest.turns import Turns
from ncclwatch_server.ingest.websocket import HOST, AgentLine
from ncclwatch_server.security.scopes import Access
from ncclwatch_server.watch.counters import Counters

MESSAGES = st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 125, 126, 127, 3000, 65_535, 65_536, 70_000])))


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = bytearray(), False
        self.unsent, self.reading = 0, True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@dataclass
class Scene:
    """One line, the other side of it, and what was said."""

    refused: tuple[int, str] = (0, "")
    said: list[tuple[bool, bytes]] = field(default_factory=list)
    over: int = 0
    admitted: bool = True
    most: int = 2**40  # that it expects
    asked: list[tuple[int, bytes, bool]] = field(default_factory=list)
    starved: str = ""
    budget: LineBudget = field(default_factory=LineBudget)
    turns: Turns = field(default_factory=lambda: Turns(clock=lambda: 0.0, used=lambda: 0.0))
    wire: Wire = field(default_factory=Wire)
    client: ClientProtocol = field(default_factory=lambda: ClientProtocol(parse_uri("ws://h/ws/agent"), max_size=None))

    def __post_init__(self) -> None:
        self.server_state = ServerState()
        self.line = AgentLine(Config(app=None), self.server_state, {HOST: self})  # type: ignore[arg-type]
        self.line.connection_made(self.wire)
        self.client.send_request(self.client.connect())
        self.answers: list[object] = []
        self.carry()

    def problem(self, path: str, headers: Headers) -> tuple[int, str]:
        self.path, self.headers = path, headers
        return self.refused

    def meet(self, line: AgentLine, headers: Headers) -> "Scene":
        return self

    def begin(self) -> None:
        assert not self.said
        if self.admitted:
            self.line.admit()

    def expects(self, size: int, head: bytes, *, text: bool) -> bool:
        self.asked.append((size, head, text))
        if size > self.most:
            self.line._end()
        return size <= self.most

    def starve(self, reason: str) -> None:
        self.starved = reason
        self.line.dismiss(reason.encode(), 1008)

    def take(self, data: bytes, *, text: bool) -> None:
        self.said.append((text, data))

    def unblocked(self) -> None:
        self.said.append((True, b"unblocked"))

    def ended(self) -> None:
        self.over += 1

    def carry(self, pieces: Callable[[bytes], list[bytes]] = lambda data: [data]) -> None:
        """Carry bytes to and fro until there are none."""
        while data := b"".join(self.client.data_to_send()):
            for piece in pieces(data):
                self.line.data_received(piece)
            self.back()

    def back(self) -> None:
        data, self.wire.written = bytes(self.wire.written), bytearray()
        if data:
            self.client.receive_data(data)
            for event in self.client.events_received():
                if isinstance(event, Response) and event.status_code == 101:
                    self.client.state = State.OPEN
                self.answers.append(event)


def in_pieces(seed: int) -> Callable[[bytes], list[bytes]]:
    def cut(data: bytes) -> list[bytes]:
        rng = random.Random(seed)
        places = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(rng.choice((1, 3, 30))))})
        few = [*range(min(20, len(data)))]  # a head arrives byte by byte
        places = sorted({*places, *few})
        return [data[a:b] for a, b in itertools.pairwise(places)]

    return cut


@hypothesis_settings(deadline=None)  # up to a megabyte each, in a process that may have to wait for a core
@given(messages=MESSAGES, seed=st.integers(0, 1000))
def test_messages_arrive_whole_in_order_whatever_pieces_they_come_in(
    messages: list[tuple[bool, int]], seed: int
) -> None:
    scene, sent = Scene(), []
    for text, size in messages:
        data = bytes(ord("a") + (number + size) % 26 for number in range(size))
        sent.append((text, data))
        (scene.client.send_text if text else scene.client.send_binary)(data)
    scene.carry(in_pieces(seed))
    assert scene.said == sent
    assert not scene.wire.closed


@given(parts=st.lists(st.binary(max_size=300), min_size=2, max_size=6), text=st.booleans(), seed=st.integers(0, 1000))
def test_a_message_in_fragments_is_put_together_and_pings_between_them_are_answered(
    parts: list[bytes], text: bool, seed: int
) -> None:
    scene, client = Scene(), None
    client = scene.client
    (client.send_text if text else client.send_binary)(parts[0], fin=False)
    for part in parts[1:-1]:
        client.send_ping(b"there?")
        client.send_continuation(part, fin=False)
    client.send_continuation(parts[-1], fin=True)
    client.send_binary(b"next")
    scene.carry(in_pieces(seed))
    assert scene.said == [(text, b"".join(parts)), (False, b"next")]
    pongs = [each for each in scene.answers if isinstance(each, Frame) and each.opcode is Opcode.PONG]
    assert [bytes(pong.data) for pong in pongs] == [b"there?"] * (len(parts) - 2)


def test_whoever_is_refused_before_the_handshake_reads_why() -> None:
    scene = Scene(refused=(403, "not from there"))
    answer = scene.answers[0]
    assert isinstance(answer, Response)
    assert (answer.status_code, answer.body) == (403, b"not from there")
    assert scene.wire.closed
    scene.line.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert len(scene.answers) == 1
    scene.line.connection_lost(None)
    assert scene.over == 0


def test_a_request_that_is_no_handshake_is_answered_and_closed() -> None:
    scene, wire = Scene(), Wire()
    line = AgentLine(Config(app=None), ServerState(), {HOST: scene})  # type: ignore[arg-type]
    line.connection_made(wire)
    line.data_received(b"GET /ws/agent HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
    assert wire.written.startswith(b"HTTP/1.1 400 ")
    assert wire.closed


BROKEN = {
    "unmasked": (b"\x82\x03abc", 1002),
    "unmasked, and more behind it": (b"\x82\x03abcdefghij", 1002),
    "unmasked, its head only": (b"\x82\x7e", 1002),
    "reserved bit": (b"\xc2\x80\0\0\0\0", 1002),
    "unknown kind": (b"\x83\x80\0\0\0\0", 1002),
    "continues nothing": (b"\x80\x81\0\0\0\0a", 1002),
    "another message within one": (b"\x02\x81\0\0\0\0a\x82\x81\0\0\0\0b", 1002),
    "too long": (b"\x82\xff" + (config.MESSAGE_BYTES_MAX + 1).to_bytes(8, "big"), 1009),
    "beyond all": (b"\x82\xff" + b"\xff" * 8 + b"\0\0\0\0abc", 1009),
    "a ping that is too long, its head only": (b"\x89\xff" + (8_000_000).to_bytes(8, "big"), 1002),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_rules_is_refused_as_soon_as_that_is_seen_and_nothing_is_kept(name: str) -> None:
    data, code = BROKEN[name]
    scene = Scene()
    scene.line.data_received(data)
    scene.back()
    assert scene.client.close_rcvd is not None
    assert scene.client.close_rcvd.code == code
    assert scene.wire.closed
    scene.line.data_received(b"\x82\x81\0\0\0\0c")
    assert scene.said == []
    assert len(scene.line._rest) == 0


def test_many_small_pieces_of_a_long_message_are_not_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, looks = Scene(), 0
    frame = websocket._frame

    def counted(data: bytes, at: int) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return frame(data, at)

    monkeypatch.setattr(websocket, "_frame", counted)
    scene.client.send_binary(b"x" * 1_000_000)
    scene.carry(lambda data: [data[at : at + 1000] for at in range(0, len(data), 1000)])
    assert len(scene.said) == 1
    assert looks <= 3


def test_an_agent_that_hangs_up_is_answered_and_the_talk_is_over_once() -> None:
    scene = Scene()
    assert scene.line in scene.server_state.connections
    scene.client.send_close(1000, "bye")
    scene.carry()
    assert scene.wire.closed
    assert scene.client.close_rcvd is not None
    scene.line.connection_lost(None)
    assert scene.over == 1
    assert not scene.server_state.connections


def test_nothing_is_listened_to_after_the_last_words_and_the_connection_ends_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "_CLOSE_S", 0.01)

    async def dismissed() -> Scene:
        scene = Scene()
        given_up = asyncio.Event()
        scene.wire.abort = given_up.set  # type: ignore[method-assign]
        scene.line.dismiss(b'"no"', 1008)
        assert (scene.over, scene.line.talks) == (1, False)
        scene.client.send_binary(b"still here")
        scene.line.data_received(b"".join(scene.client.data_to_send()))
        scene.line.send(b"more")
        scene.back()
        await asyncio.wait_for(given_up.wait(), 10)
        return scene

    scene = asyncio.run(dismissed())
    words = [bytes(each.data) for each in scene.answers if isinstance(each, Frame) and each.opcode is Opcode.TEXT]
    assert (words, scene.said) == ([b'"no"'], [])
    assert scene.client.close_rcvd is not None
    assert scene.client.close_rcvd.code == 1008


def test_the_server_says_goodbye_when_it_ends() -> None:
    scene = Scene()
    scene.line.shutdown()
    scene.back()
    assert scene.client.close_rcvd is not None
    assert scene.client.close_rcvd.code == 1012
    assert scene.wire.closed


def test_who_sends_is_told_when_the_agent_reads_again() -> None:
    scene = Scene()
    scene.line.pause_writing()
    assert scene.line.blocked
    scene.line.resume_writing()
    assert (scene.line.blocked, scene.said) == (False, [(True, b"unblocked")])


def frame(size: int, *, first: int = 0x81, sent: int | None = None, payload: bytes = b"x") -> bytes:
    """Return a masked frame that says it has so many bytes, or its beginning."""
    body = (payload * (size // len(payload) + 1))[:size]
    head = bytes([first]) + (
        bytes([0x80 | size])
        if size < 126
        else b"\xfe" + size.to_bytes(2, "big")
        if size < 65536
        else b"\xff" + size.to_bytes(8, "big")
    )
    return (head + b"\0\0\0\0" + body)[: sent if sent is not None else len(head) + 4 + size]


def test_before_it_is_admitted_a_line_asks_for_whatever_is_longer_than_a_hello_and_keeps_none_of_it() -> None:
    scene = Scene(admitted=False, most=0)
    scene.line.data_received(frame(4096))
    assert (scene.asked, len(scene.said)) == ([], 1)
    scene.line.data_received(frame(4097, sent=1000))
    assert scene.asked == [(4097, b"x" * 32, True)]
    for _ in range(100):
        scene.line.data_received(b"y" * 1000)
    assert (scene.over, len(scene.said)) == (1, 1)
    assert scene.budget.kept == len(scene.line._rest) <= 131  # as long as what answers the last words may be


def test_the_kind_of_a_long_message_is_asked_for_as_soon_as_its_first_bytes_are_there() -> None:
    scene = Scene(most=100_000)
    data = frame(100_001, payload=b'{"type":"announce"}')
    for at in range(45):
        scene.line.data_received(data[at : at + 1])
    assert scene.asked == []
    scene.line.data_received(data[45:46])
    assert scene.asked == [(100_001, b'{"type":"announce"}{"type":"anno', True)]
    assert not scene.line.talks
    scene = Scene(most=100_000)
    scene.line.data_received(frame(70_000, first=0x82))
    assert (scene.asked, scene.said) == ([(70_000, b"x" * 32, False)], [(False, b"x" * 70_000)])


def test_fragments_count_together() -> None:
    scene = Scene(most=100_000)
    scene.line.data_received(frame(60_000, first=0x01))
    assert (scene.asked, scene.budget.kept) == ([], 60_000)
    scene.line.data_received(frame(40_000, first=0x00))
    assert (scene.asked, scene.budget.kept) == ([(100_000, b"x" * 32, True)], 100_000)
    scene.line.data_received(frame(0, first=0x89))
    assert scene.line.talks
    scene.line.data_received(frame(1, first=0x00, sent=2))
    assert (scene.line.talks, scene.budget.kept, scene.said) == (False, 2, [])  # of its head, to find the next one


def test_after_its_last_words_a_line_still_hears_the_answer_to_them_behind_all_that_it_throws_away() -> None:
    async def dismissed(sent: list[bytes]) -> Scene:
        scene = Scene()
        scene.line.data_received(frame(50_000, sent=10_000))
        scene.line.dismiss(b"no", 1008)
        for data in sent:
            scene.line.data_received(data)
        return scene

    close = frame(2, first=0x88, payload=b"\x03\xe8")
    rest = frame(50_000)[10_000:]
    for sent in (
        [rest, frame(3), close],
        [rest + frame(126) + frame(0, first=0x89) + close],
        [*map(bytes, zip(rest + close))],
    ):
        scene = asyncio.run(dismissed(sent))
        assert (scene.wire.closed, scene.said, len(scene.line._rest)) == (True, [], 0)
    flooded = asyncio.run(dismissed([rest, *[b"\0" * 65536] * 5]))
    assert (flooded.wire.reading, len(flooded.line._rest)) == (False, 0)


def test_pings_of_a_peer_that_does_not_read_wait_and_the_newest_is_answered_when_it_does() -> None:
    scene = Scene()
    scene.wire.unsent = 65 * 1024
    for number in range(1000):
        scene.line.data_received(frame(3, first=0x89, payload=b"%03d" % number))
    assert scene.wire.written == b""
    scene.wire.unsent = 0
    scene.line.resume_writing()
    scene.back()
    assert [bytes(each.data) for each in scene.answers if isinstance(each, Frame)] == [b"999"]


def test_who_sends_nothing_but_pings_is_told_that_this_is_enough() -> None:
    async def flooded() -> Scene:
        scene = Scene()
        scene.line.data_received(frame(0, first=0x89) * 1999)
        assert scene.line.talks
        scene.line.data_received(frame(0, first=0x89) * 100)
        return scene

    scene = asyncio.run(flooded())
    assert "1000 pings or fragments within 10 s" in scene.starved
    assert not scene.line.talks


def test_who_hangs_up_on_a_peer_that_does_not_read_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_CLOSE_S", 0.01)

    async def closed() -> None:
        scene, given_up = Scene(), asyncio.Event()
        scene.wire.unsent = 1
        scene.wire.abort = given_up.set  # type: ignore[method-assign]
        scene.line.data_received(b"\xc2\x80\0\0\0\0")
        assert scene.wire.closed
        await asyncio.wait_for(given_up.wait(), 10)

    asyncio.run(closed())


def test_when_all_lines_keep_too_much_the_greediest_is_told_and_the_others_live_on() -> None:
    budget = LineBudget(150_000)
    modest, greedy = Scene(budget=budget), Scene(budget=budget)

    async def play() -> None:
        modest.line.data_received(frame(60_000, sent=50_000))
        greedy.line.data_received(frame(120_000, sent=60_000))
        greedy.line.hold(20_000)
        assert (budget.kept, greedy.starved) == (130_000, "")
        modest.line.data_received(frame(60_000)[50_000:])
        greedy.line.data_received(b"x" * 40_000)
        modest.line.data_received(frame(60_000, sent=31_000))

    asyncio.run(play())
    assert "0.1 MB of it were yours" in greedy.starved
    assert (modest.starved, budget.kept) == ("", 51_000)  # what is read in a thread is still there
    greedy.line.hold(-20_000)
    modest.line.data_received(frame(60_000)[31_000:])
    assert (budget.kept, len(modest.said)) == (0, 2)


class _Quiet:
    """A line of which nothing is heard."""

    peer = "10.0.0.7"

    def __init__(self) -> None:
        self.heard, self.pings, self.aborted = True, 0, False

    def ping(self) -> None:
        self.pings += 1

    def give_up(self) -> None:
        self.aborted = True


def test_an_agent_that_says_nothing_is_asked_once_and_then_given_up() -> None:
    door = Door(SimpleNamespace(counters=Counters()), Access(()))  # type: ignore[arg-type]
    line = _Quiet()
    session = door.meet(line, Headers({}))  # type: ignore[arg-type]
    session.look()
    assert (line.pings, line.aborted) == (0, False)
    session.look()
    assert (line.pings, line.aborted) == (1, False)
    line.heard = True  # its answer
    session.look()
    session.look()
    assert (line.pings, line.aborted) == (2, False)
    session.look()
    assert (line.pings, line.aborted) == (2, True)
    assert limits.PING_S >= 5
