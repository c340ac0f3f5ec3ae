"""Sends digests: as fast as they are taken, or once a second on every connection. A process of its own.

What it sends was made before, so that it costs little itself. Three ways: frames of a WebSocket as an agent sends
them, bodies of POSTs with an answer awaited each time, and length-prefixed bytes for the floor in C.

Tells on standard output when all are connected ("ready"), waits for a line, sends for the seconds asked, and tells
{"sent": digests, "late_s": the most that one was sent after its time}.
"""

import base64
import heapq
import json
import pickle
import random
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ncclwatch.contract import config, wire
from ncclwatch.contract.version import VERSION

AT_ONCE = 8  # digests in one write, when as many as possible are sent
GREETED_AT_ONCE = 64


class Way(str, Enum):
    """How digests travel."""

    SOCKET = "websocket"
    POST = "post"
    FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Load:
    """What each connection announces, and the digests it sends in turn; `every_s` 0: as fast as they are taken."""

    way: Way
    port: int
    announces: list[bytes]
    digests: list[list[bytes]]
    every_s: float
    seconds: float


def frame(data: bytes, *, text: bool) -> bytes:
    """Return a masked frame of RFC 6455. The mask is 0, which leaves the bytes as they are."""
    head = bytes([0x81 if text else 0x82])
    if len(data) < 126:
        return head + bytes([0x80 | len(data)]) + bytes(4) + data
    if len(data) < 1 << 16:
        return head + struct.pack(">BH", 0x80 | 126, len(data)) + bytes(4) + data
    return head + struct.pack(">BQ", 0x80 | 127, len(data)) + bytes(4) + data


def packed(way: Way, body: bytes) -> bytes:
    """Return a digest as it goes over the wire."""
    if way is Way.SOCKET:
        return frame(body, text=False)
    if way is Way.FLOOR:
        return struct.pack("<I", len(body)) + body
    head = f"POST /digest HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connected(load: Load) -> list[socket.socket]:
    """Make all connections, some dozens at a time; on a WebSocket say hello and announce the job."""
    lines = []
    for first in range(0, len(load.announces), GREETED_AT_ONCE):
        announces = load.announces[first : first + GREETED_AT_ONCE]
        some = [socket.create_connection(("127.0.0.1", load.port)) for _ in announces]
        if load.way is Way.SOCKET:
            _greet(some, first, announces)
        for line in some:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.setblocking(False)
        lines += some
    return lines


def _greet(lines: list[socket.socket], first: int, announces: list[bytes]) -> None:
    numbered = list(enumerate(lines, first))
    for number, line in numbered:
        key = base64.b64encode(number.to_bytes(16, "big")).decode()
        line.sendall(
            f"GET {wire.AGENT_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
    for number, line in numbered:
        answer = _until(line, b"\r\n\r\n")
        if b" 101 " not in answer.split(b"\r\n", 1)[0]:
            raise SystemExit(f"no WebSocket: {answer!r}")
        said = wire.Hello(protocol=config.PROTOCOL, agent=f"bench-{number}", host=f"node{number:05d}", version=VERSION)
        line.sendall(frame(wire.encode(said), text=True))
    for line, announce in zip(lines, announces, strict=True):
        _until(line, b"welcome")
        line.sendall(frame(announce, text=True))


def _until(line: socket.socket, word: bytes) -> bytes:
    answer = b""
    while word not in answer:
        answer += _received(line)
    return answer


def _received(line: socket.socket) -> bytes:
    data = line.recv(65536)
    if not data:
        raise SystemExit("the server hung up")
    return data


def flooding(load: Load, lines: list[socket.socket]) -> int:
    """Send as fast as the server takes it, and return how many digests went out whole."""
    chunks = [b"".join(packed(load.way, each) for each in (some * AT_ONCE)[:AT_ONCE]) for some in load.digests]
    waiting = {line: memoryview(chunk) for line, chunk in zip(lines, chunks, strict=True)}
    whole = dict(waiting)
    writable = selectors.DefaultSelector()
    for each in lines:
        writable.register(each, selectors.EVENT_WRITE)
    sent, until = 0, time.monotonic() + load.seconds
    while time.monotonic() < until:
        for key, _ in writable.select(1.0):
            line: socket.socket = key.fileobj  # type: ignore[assignment]
            rest = waiting[line]
            rest = rest[line.send(rest) :]
            if not rest:
                sent += AT_ONCE
                rest = whole[line]
            waiting[line] = rest
    for line, rest in waiting.items():
        if len(rest) < len(whole[line]):
            line.settimeout(60)
            line.sendall(rest)
            sent += AT_ONCE
    return sent


def asking(load: Load, lines: list[socket.socket]) -> int:
    """Post, await the answer, post again; return how many were answered."""
    requests = {line: packed(load.way, some[0]) for line, some in zip(lines, load.digests, strict=True)}
    readable = selectors.DefaultSelector()
    for each, request in requests.items():
        readable.register(each, selectors.EVENT_READ)
        each.sendall(request)
    sent, until = 0, time.monotonic() + load.seconds
    while time.monotonic() < until:
        for key, _ in readable.select(1.0):
            line: socket.socket = key.fileobj  # type: ignore[assignment]
            _check(_received(line))
            sent += 1
            line.sendall(requests[line])
    return sent


def _check(answer: bytes) -> None:
    if not answer.startswith(b"HTTP/1.1 204"):
        raise SystemExit(f"the peer refused a digest: {answer!r}")


def pacing(load: Load, lines: list[socket.socket]) -> tuple[int, float]:
    """Send a digest every so often on each line, at a moment of its own; return how many, and how late at most."""
    rng, began = random.Random(1), time.monotonic()
    due = [(began + rng.random() * load.every_s, number) for number in range(len(lines))]
    heapq.heapify(due)
    shared = {id(some): some for some in load.digests}  # thousands may send the same
    packs = {key: [packed(load.way, each) for each in some] for key, some in shared.items()}
    ready = [packs[id(some)] for some in load.digests]
    turns = [0] * len(lines)
    answers = selectors.DefaultSelector()
    for each in lines:
        answers.register(each, selectors.EVENT_READ)
    sent, late_s, until = 0, 0.0, began + load.seconds
    while (now := time.monotonic()) < until:
        while due[0][0] <= now:
            at, number = due[0]
            late_s = max(late_s, now - at)
            lines[number].sendall(ready[number][turns[number] % len(ready[number])])
            turns[number] += 1
            sent += 1
            heapq.heapreplace(due, (at + load.every_s, number))
        for key, _ in answers.select(max(0.0, min(due[0][0], until) - time.monotonic())):
            answer = _received(key.fileobj)  # type: ignore[arg-type]
            if load.way is Way.POST:
                _check(answer)
    return sent, late_s


def main() -> None:
    """Send one load, which is in the file named by the only argument."""
    way, *rest = pickle.loads(Path(sys.argv[1]).read_bytes())
    load = Load(Way(way), *rest)
    lines = connected(load)
    print("ready", flush=True)
    sys.stdin.readline()
    late_s = 0.0
    if load.every_s:
        sent, late_s = pacing(load, lines)
    else:
        flood: Callable[[Load, list[socket.socket]], int] = asking if load.way is Way.POST else flooding
        sent = flood(load, lines)
    print(json.dumps({"sent": sent, "late_s": late_s}), flush=True)
    sys.stdin.readline()  # connections stay until all is counted


if __name__ == "__main__":
    main()
