"""Bytes from an agent's socket, in pieces of any size: the same messages as the library that is known to be right.

An input is a seed for the sizes of the pieces (one byte), and what comes after the handshake.
"""

import asyncio
import random
from collections.abc import Hashable
from unittest.mock import patch

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side, State

from ncclwatch.contract import config
from ncclwatch_server import limits
from tests.fuzz import mutation
from tests.fuzz.engine import Broken, Surface
from tests.unit.server.ingest.test_websocket import Scene

Message = tuple[bool, bytes]
MASK = b"\x37\xfa\x21\x3d"  # of the examples in RFC 6455, section 5.7
KEPT_MAX = 1024  # bytes beyond a hello: heads of frames, and what comes in one piece with them


def check(data: bytes) -> Hashable:
    """Compare an agent's line with `websockets`, which gets the same bytes at once."""
    return asyncio.run(_compared(data[:1], data[1:]))


async def _compared(seed: bytes, stream: bytes) -> Hashable:
    scene = Scene(admitted=False)
    for piece in _pieces(random.Random(seed), stream):
        if scene.wire.closed:
            break
        scene.line.data_received(piece)
        # Whoever was not asked for leave may say little.
        if len(scene.line._rest) > limits.HELLO_BYTES_MAX + KEPT_MAX and not scene.asked:
            raise Broken(f"{len(scene.line._rest)} bytes are kept of somebody who has not said who it is")
    expected, state, inside_a_frame = _by_the_library(stream)
    if scene.said != expected:
        raise Broken(f"{len(scene.said)} messages instead of {len(expected)}, or others")
    # A line may refuse a frame by its head, for which the library first waits for the payload.
    if not scene.line._rest and not inside_a_frame and scene.line.talks != (state is State.OPEN):
        raise Broken(f"the talk goes on: {scene.line.talks}, but the connection is {state.name}")
    if scene.line._closes is not None:
        scene.line._closes.cancel()
    scene.line.connection_lost(None)
    return len(expected), state, sum(len(said) for _, said in expected) > 125


def _pieces(rng: random.Random, stream: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(stream):
        size = rng.choice((1, 2, 3, 7, 60, 900))
        found.append(stream[at : at + size])
        at += size
    return found


def _by_the_library(stream: bytes) -> tuple[list[Message], State, bool]:
    """Return the messages until the first mistake, or goodbye; its state then; whether the stream ends in a frame."""
    wire = Protocol(Side.SERVER, max_size=config.MESSAGE_BYTES_MAX)
    wire.receive_data(stream)
    said: list[Message] = []
    parts: list[bytes] = []
    text = False
    for frame in wire.events_received():
        assert isinstance(frame, Frame)
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            text, parts = frame.opcode is Opcode.TEXT, []
        elif frame.opcode is not Opcode.CONT:
            continue
        parts.append(bytes(frame.data))
        if frame.fin:
            said.append((text, b"".join(parts)))
    state = wire.state
    wire.receive_eof()  # the only way to ask: of a head that is complete, nothing is left in its buffer
    return said, state, str(wire.parser_exc).startswith("stream ends after")


@patch("websockets.frames.secrets.token_bytes", lambda _: MASK)  # else each run has other inputs
def _seed(*steps: tuple[str, bytes]) -> bytes:
    client = ClientProtocol(None, state=State.OPEN)  # type: ignore[arg-type]
    for step, data in steps:
        if step in ("send_continuation", "fragment_text", "fragment_binary"):
            fin = step == "send_continuation"
            {"send_continuation": client.send_continuation, "fragment_text": client.send_text,
             "fragment_binary": client.send_binary}[step](data, fin=fin)  # fmt: skip
        elif step == "send_close":
            client.send_close(1000, data.decode())
        else:
            getattr(client, step)(data)
    return b"\x07" + b"".join(client.data_to_send())


SURFACE = Surface(
    name="agent_line",
    seeds=(
        _seed(("send_text", b'{"type":"hello"}'), ("send_binary", b"NWDG" + bytes(200)), ("send_ping", b"x")),
        _seed(("fragment_text", b"ab"), ("send_ping", b""), ("send_continuation", b"cd"), ("send_text", b"e")),
        _seed(("send_binary", bytes(70_000)), ("send_close", b"bye")),
        _seed(("send_pong", b"late"), ("fragment_binary", b""), ("send_continuation", bytes(130))),
    ),
    mutate=mutation.of_bytes,
    check=check,
)
