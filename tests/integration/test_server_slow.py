"""Clients that are slow on purpose: each loses its connection soon, and nobody else notices.

The server runs in a thread of the test, with patience of tenths of seconds.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI, Request, WebSocket
from starlette.responses import StreamingResponse
from websockets.sync.client import connect

from ncclwatch_server import limits
from ncclwatch_server.security.boundary import Boundary
from ncclwatch_server.security.scopes import Access
from ncclwatch_server.serving.slow_clients import PatientHttp
from ncclwatch_server.serving.uvicorn_server import listen

pytestmark = pytest.mark.integration

APP = FastAPI()
APP.add_middleware(Boundary, hosts=frozenset({"localhost"}), access=Access())


@APP.get("/")
async def root() -> str:
    return "here"


@APP.post("/body")
async def body(request: Request) -> int:
    return len(await request.body())


@APP.get("/stream")
async def stream() -> StreamingResponse:
    async def parts() -> object:
        for _ in range(30):
            yield b"x"
            await asyncio.sleep(0.05)

    return StreamingResponse(parts())


@APP.get("/flood")
async def flood() -> StreamingResponse:
    async def parts() -> object:
        while True:
            yield b"x" * 1024 * 1024
            await asyncio.sleep(0)

    return StreamingResponse(parts())


@APP.websocket("/ws")
async def ws(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(await websocket.receive_text())


class Quiet(uvicorn.Server):
    """uvicorn without signals, which only a main thread can have."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(limits, "HEAD_S", 0.5)
    monkeypatch.setattr(limits, "BODY_S", 0.5)
    monkeypatch.setattr(limits, "READ_S", 0.5)
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 5)
    monkeypatch.setattr(limits, "BODY_BYTES_MAX", 1000)
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        APP, http=PatientHttp, ws="websockets-sansio", log_config=None, timeout_keep_alive=60, lifespan="off",
        timeout_graceful_shutdown=0,
    )  # fmt: skip
    server = Quiet(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def answer(line: socket.socket) -> bytes:
    """Return all that comes until the other side hangs up; time out if it never does."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := line.recv(65536):
            found += part
    return found


def drip(line: socket.socket, data: bytes) -> float:
    """Send the same again and again until the other side hangs up. Returns how long that took."""
    began = time.monotonic()
    line.settimeout(0.05)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - began < 20:
            line.sendall(data)
            with contextlib.suppress(TimeoutError):
                if not line.recv(65536):
                    break
    return time.monotonic() - began


HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize("sent", [b"", b"G", HEAD, HEAD + b"X: y"])
def test_who_does_not_say_what_he_wants_is_let_go(port: int, sent: bytes) -> None:
    with dial(port) as line:
        line.sendall(sent)
        assert answer(line) == b""
    assert httpx2.get(f"http://127.0.0.1:{port}/").json() == "here"


@pytest.mark.parametrize("part", [b"\r\n", b"X: y\r\n", b"x"])
def test_nor_does_it_help_to_say_it_by_and_by(port: int, part: bytes) -> None:
    with dial(port) as line:
        if part != b"\r\n":
            line.sendall(HEAD)
        assert drip(line, part) < 15


def until_here(line: socket.socket) -> None:
    """Read the answer, which may come in parts."""
    said = b""
    while b"here" not in said:
        part = line.recv(65536)
        assert part, said
        said += part


def test_after_an_answer_the_same_patience_holds(port: int) -> None:
    for next_part in (b"\r\n", b"G"):
        with dial(port) as line:
            line.sendall(HEAD + b"\r\n")
            until_here(line)
            assert drip(line, next_part) < 15


def test_a_body_that_drips_is_answered_with_a_sentence(port: int) -> None:
    with dial(port) as line:
        line.sendall(b"POST /body HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nx")
        said = answer(line)  # and hangs up: who cannot send a body gets no second try on this line
    assert b" 408 " in said
    assert b"did not come within" in said


def test_a_body_beyond_the_limit_is_refused_said_or_not(port: int) -> None:
    url = f"http://127.0.0.1:{port}/body"
    assert httpx2.post(url, content=b"x" * 1000).json() == 1000
    said = httpx2.post(url, content=b"x" * 1001)
    unsaid = httpx2.post(url, content=(b"x" * 100 for _ in range(11)))
    assert (said.status_code, unsaid.status_code) == (413, 413)
    assert "more than 1000 bytes" in unsaid.json()["detail"]


def test_headers_without_end_are_refused_before_they_fill_the_memory(port: int) -> None:
    with dial(port) as line:
        line.sendall(HEAD)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                line.sendall(b"X: " + b"y" * 16_384)
        assert b" 431 " in answer(line)


def test_a_reader_that_does_not_read_is_let_go(port: int) -> None:
    with dial(port) as line:
        line.sendall(b"GET /flood HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        deadline = time.monotonic() + 20
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:  # it hangs up: what we send is reset then
                line.sendall(b"\r\n")
                time.sleep(0.05)
        assert time.monotonic() < deadline


def test_long_answers_and_websockets_have_all_the_time_they_need(port: int) -> None:
    assert httpx2.get(f"http://127.0.0.1:{port}/stream").content == b"x" * 30
    with connect(f"ws://127.0.0.1:{port}/ws", proxy=None) as line:
        time.sleep(1.2)  # more than twice what a head may take: nothing can be polled for here
        line.send("still there")
        assert line.recv(timeout=10) == "still there"


def test_more_connections_than_there_is_room_for_are_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_S", 60.0)
    lines = [dial(port) for _ in range(5)]
    with dial(port) as one_more:
        began = time.monotonic()
        assert answer(one_more) == b""
        assert time.monotonic() - began < 10
    for line in lines:
        line.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("127.0.0.1:8470", 200), ("[::1]:8470", 200), ("localhost:1", 200), ("LOCALHOST.", 200),
        ("a.localhost", 200), ("10.0.0.7", 200), ("evil.example", 421), ("evil.example:8470", 421),
        ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421), ("[::1", 421), ("@127.0.0.1", 200),
    ],
)  # fmt: skip
def test_without_a_token_it_answers_to_addresses_and_its_own_names_only(port: int, host: str, status: int) -> None:
    with dial(port) as line:
        line.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        said = answer(line)
    assert f" {status} ".encode() in said.split(b"\r\n")[0]
