"""A server that follows answers by asking the one that leads, as if that had been asked."""

import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from ncclwatch.contract.machine.liveness import LoopLife
from ncclwatch_server.leadership.lease import Candidate
from ncclwatch_server.serving.elected import without
from ncclwatch_server.serving.relay import relay_app

Answering = Callable[[httpx.Request], httpx.Response]


def follower(
    answering: Answering, leader: str = "https://leader:8470", problem: str = "", life: LoopLife | None = None
) -> TestClient:
    elector = SimpleNamespace(
        leader_url=leader,
        me=Candidate(id="me", url="http://me"),
        term=3,
        lease=None,
        leads=False,
        problem=problem,
        life=life or LoopLife("election", age_s_max=60.0, vital=True),
    )
    client = httpx.AsyncClient(transport=httpx.MockTransport(answering))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return TestClient(relay_app(elector, lifespan, client))  # type: ignore[arg-type]


class Body(httpx.AsyncByteStream):
    """What comes from a network, in parts. It may break off."""

    def __init__(self, *parts: bytes, breaks: bool = False) -> None:
        self._parts, self._breaks = parts, breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        if self._breaks:
            raise httpx.ReadError("connection reset")


def never(_: httpx.Request) -> httpx.Response:
    raise AssertionError("the leader was asked")


def test_a_request_goes_to_the_leader_as_it_is_but_for_where_it_was_sent() -> None:
    asked: list[httpx.Request] = []

    def leader(request: httpx.Request) -> httpx.Response:
        request.read()
        asked.append(request)
        return httpx.Response(
            201, headers=[("set-cookie", "a=1"), ("set-cookie", "b=2")], stream=Body(b'{"id":', b"7}")
        )

    sent = {
        "authorization": "Bearer t", "origin": "http://testserver", "cookie": "s=1", "x-forwarded-for": "10.9.9.9",
    }  # fmt: skip
    with follower(leader) as reader:
        answer = reader.post("/api/v1/silences?x=1&y=%20", headers=sent, json={"job": "j"})
    assert (answer.status_code, answer.json()) == (201, {"id": 7})
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    (request,) = asked
    assert (request.method, str(request.url)) == ("POST", "https://leader:8470/api/v1/silences?x=1&y=%20")
    assert request.content == b'{"job":"j"}'
    assert (request.headers["authorization"], request.headers["cookie"]) == ("Bearer t", "s=1")
    assert (request.headers["host"], "origin" in request.headers) == ("leader:8470", False)
    assert request.headers["x-forwarded-for"] == "testclient"


@pytest.mark.parametrize("path", ["/healthz", "/leaderz", "/metrics"])
def test_what_it_knows_itself_it_answers_itself(path: str) -> None:
    with follower(never) as reader:
        answer = reader.get(path)
    assert answer.status_code == 200
    assert "ncclwatch" in answer.text or answer.json()["leader"] == "https://leader:8470"


def test_an_election_that_stands_still_is_told_by_its_health() -> None:
    now = [0.0]
    life = LoopLife("election", age_s_max=60.0, vital=True, clock=lambda: now[0])
    life.went_round()
    with follower(never, life=life) as reader:
        assert reader.get("/healthz").status_code == 200
        now[0] = 61.0
        answer = reader.get("/healthz")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "the loop 'election' has not finished a round for 61 s"


def test_a_path_cannot_lead_to_another_server() -> None:
    asked: list[str] = []

    def leader(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(404, stream=Body())

    with follower(leader) as reader:
        for path in ("//evil.example/x", "/@evil.example/", "/..//x", "/a%2f%2fb"):
            reader.get(path)
    assert all(url.startswith("https://leader:8470/") for url in asked)


def test_without_a_leader_it_says_so_and_is_not_ready() -> None:
    with follower(never, leader="") as reader:
        answer = reader.get("/api/v1/jobs")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "no server leads" in answer.json()["detail"]
        assert reader.get("/readyz").status_code == 503
        assert reader.get("/healthz").status_code == 200


def test_a_leader_that_does_not_answer_is_named() -> None:
    def leader(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with follower(leader) as reader:
        answer = reader.get("/api/v1/jobs")
    assert answer.status_code == 503
    assert "https://leader:8470, does not answer (refused)" in answer.json()["detail"]


def test_an_answer_that_breaks_off_is_what_came_of_it() -> None:
    with follower(lambda _: httpx.Response(200, stream=Body(b"event: one", breaks=True))) as reader:
        assert reader.get("/api/v1/stream").text == "event: one"


def test_it_never_asks_itself() -> None:
    with follower(never, leader="http://me") as reader:
        assert reader.get("/api/v1/jobs").status_code == 503


def test_a_process_that_begins_again_keeps_its_command_line_but_for_what_was_good_once() -> None:
    line = ["-m", "ncclwatch_server", "--ready-fd", "5", "--port", "0", "--listen-fd=7", "--store", "x"]
    assert without(line, ("--listen-fd", "--ready-fd")) == ["-m", "ncclwatch_server", "--port", "0", "--store", "x"]
