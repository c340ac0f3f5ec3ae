"""Whatever pieces its bytes come in, an agent's message is taken once and whole; what breaks rules ends the line."""

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from ncclwatch.contract import config as limits
from ncclwatch_server import agent_line, settings
from ncclwatch_server.agent_line import HOST, AgentLine
from ncclwatch_server.counters import Counters
from ncclwatch_server.ingest import Door
from ncclwatch_server.scopes import Access

MESSAGES = st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 125, 126, 127, 3000, 65_535, 65_536, 70_000])))


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closed = bytearray(), False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


@dataclass
class Scene:
    """One line, the other side of it, and what was said."""

    refused: tuple[int, str] = (0, "")
    said: list[tuple[bool, bytes]] = field(default_factory=list)
    over: int = 0
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
    "too long": (b"\x82\xff" + (limits.MESSAGE_BYTES_MAX + 1).to_bytes(8, "big"), 1009),
    "beyond all": (b"\x82\xff" + b"\xff" * 8 + b"\0\0\0\0abc", 1009),
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
    frame = agent_line._frame

    def counted(data: bytes, at: int) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return frame(data, at)

    monkeypatch.setattr(agent_line, "_frame", counted)
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
    monkeypatch.setattr(agent_line, "_CLOSE_S", 0.01)

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


class _Quiet:
    """A line of which nothing is heard."""

    def __init__(self) -> None:
        self.heard, self.pings, self.aborted = True, 0, False

    def ping(self) -> None:
        self.pings += 1

    def abort(self) -> None:
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
    assert settings.PING_S >= 5
