"""A wrong token is counted, and waits, before anything else of a request is looked at."""

from types import SimpleNamespace

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ncclwatch.contract.network.tokens import Token
from ncclwatch_server.app import create_app
from ncclwatch_server.security import access
from ncclwatch_server.security.guesses import FREE, WAIT_S
from ncclwatch_server.security.scopes import EVERYTHING, Grant, Lack
from ncclwatch_server.settings import Settings

GOOD, WRONG = "a-good-token-of-24-chars", "a-wrong-token-of-24-char"
LONG = b"x" * 20_000  # more than a stranger's body may have
REQUESTS = [
    ("GET", "/api/v1/jobs", b""),
    ("HEAD", "/api/v1/jobs", b""),
    ("OPTIONS", "/api/v1/jobs", b""),
    ("GET", "/metrics", b""),
    ("GET", "/jobs", b""),
    ("GET", "/openapi.json", b""),
    ("GET", "/nothing/here", b""),
    ("POST", "/nothing/here", LONG),
    ("POST", "/api/v1/jobs/a/stacks", b""),
    ("POST", "/api/v1/jobs/a/stacks", LONG),
    ("POST", "/api/v1/jobs/a/capture", LONG),
    ("PUT", "/healthz/", LONG),
    ("DELETE", "/api/v1/jobs/a", b""),
    ("GET", "/ws/agent", b""),
    ("POST", "/logout", LONG),
]
OPEN = ("/healthz", "/readyz", "/login", "/static/style.css", "/static/none.css")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(access, "asyncio", SimpleNamespace(sleep=sleep))
    return found


@pytest.fixture
def app() -> FastAPI:
    return create_app(Settings(grants=(Grant(token=Token(secret=GOOD), scopes=EVERYTHING),)))


def ask(app: FastAPI, method: str, path: str, token: str, body: object = None) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return TestClient(app, follow_redirects=False).request(method, path, headers=headers, content=body)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_a_wrong_token_is_counted_and_waits_whatever_is_asked(
    app: FastAPI, waits: list[float], method: str, path: str, body: bytes, chunked: bool
) -> None:
    for _ in range(FREE + 10):
        ask(app, "GET", "/api/v1/jobs", WRONG)
    counted = app.state.access.denials[Lack.WRONG]
    waits.clear()
    answer = ask(app, method, path, WRONG, iter([body]) if chunked else body)
    assert (answer.status_code, waits) == (401, [WAIT_S[1]])
    assert app.state.access.denials == {Lack.WRONG: counted + 1}
    assert app.state.access.guesses.untold() == {"testclient": counted + 1}


def test_a_token_in_the_form_of_the_login_page_waits_and_counts_the_same(app: FastAPI, waits: list[float]) -> None:
    for number in range(1, FREE + 10):
        answer = ask(app, "POST", "/login", "", f"token={WRONG}")
        assert (answer.status_code, app.state.access.denials[Lack.WRONG]) == (401, number)
    assert waits[-1] == WAIT_S[1]


def test_where_too_many_answers_wait_no_token_is_looked_at(app: FastAPI) -> None:
    for _ in range(FREE + 1):
        ask(app, "GET", "/api/v1/jobs", WRONG)
    app.state.access.guesses.waits("testclient", 1000)
    for method, path, body in REQUESTS:
        answers = [ask(app, method, path, token, body) for token in (WRONG, GOOD)]
        assert [answer.status_code for answer in answers] == [429, 429]
        assert answers[0].content == answers[1].content


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
@pytest.mark.parametrize("body", [b"", LONG])
def test_what_is_open_answers_as_if_no_token_had_been_shown(app: FastAPI, path: str, method: str, body: bytes) -> None:
    answers = [ask(app, method, path, token, body) for token in ("", WRONG, GOOD)]
    assert len({answer.status_code for answer in answers}) == 1
    assert not app.state.access.guesses.untold()


def test_without_a_token_nothing_is_told_but_signs_of_life_and_the_login_page(app: FastAPI) -> None:
    described = [path for path, methods in app.openapi()["paths"].items() if "get" in methods]
    pages = ("/", "/jobs", "/live/jobs", "/incidents", "/hosts/none", "/settings", "/login", "/openapi.json", "/docs")
    answers = {path: ask(app, "GET", path, "").status_code for path in (*described, *pages)}
    told = {path for path, status in answers.items() if status not in (401, 303, 404)}
    assert told == {"/healthz", "/readyz", "/login"}
    assert answers["/openapi.json"] == 401
    assert ask(app, "GET", "/openapi.json", GOOD).json() == app.openapi()


def test_a_holder_sends_longer_bodies_than_a_stranger(app: FastAPI) -> None:
    path = "/api/v1/jobs/a/stacks"
    assert ask(app, "POST", path, "", LONG).status_code == 413
    assert ask(app, "POST", path, GOOD, LONG).status_code == 422
    assert ask(app, "POST", path, GOOD, b"x" * 2_000_000).status_code == 413
