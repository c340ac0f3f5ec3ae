"""Tokens, origins and sizes, on a real server: who is let in, and what the others are told."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from ncclwatch.contract import wire
from ncclwatch.contract.model.rank import Ending
from tests.integration.fake_agent import FakeAgent, hello, open_line, reply, until
from tests.integration.server_process import ServerProcess

pytestmark = pytest.mark.integration

TOKENS = {
    "NCCLWATCH_AGENT_TOKEN": "s3-agent name=nodes",
    "NCCLWATCH_VIEWER_TOKEN": "s3-viewer",
    "NCCLWATCH_OPERATOR_TOKEN": "s3-operator name=alice",
    "NCCLWATCH_TOKEN": "s3-old name=bob until=2020-01-01",
}
READING = ("/api/v1/jobs", "/api/v1/incidents", "/api/v1/losses", "/api/v1/jobs/job/report", "/metrics", "/health")
OPERATING = (("GET", "/api/v1/audit"), ("DELETE", "/api/v1/jobs/job"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("access")
    with ServerProcess(directory, store=f"sqlite:///{directory / 'i.db'}", environ=TOKENS) as process:
        yield process


def ask(server: ServerProcess, method: str, path: str, token: str = "", **headers: str) -> httpx2.Response:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return httpx2.request(method, server.url + path, headers=headers, timeout=10)


@pytest.mark.parametrize(
    ("token", "status", "challenge", "words"),
    [
        ("", 401, "Bearer", "wants a token; set NCCLWATCH_TOKEN or NCCLWATCH_VIEWER_TOKEN"),
        ("s3-viewe", 401, 'Bearer error="invalid_token"', "does not know the token"),
        ("s3-old", 401, 'Bearer error="invalid_token"', "the token of bob ended on 2020-01-01 00:00 UTC"),
        ("s3-agent", 403, 'Bearer error="insufficient_scope"', "of scope agent, this wants scope viewer"),
    ],
)
def test_a_reader_without_a_good_token_is_told_what_is_wrong_with_it(
    server: ServerProcess, token: str, status: int, challenge: str, words: str
) -> None:
    for path in READING:
        answer = ask(server, "GET", path, token)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (status, challenge)
        assert words in answer.json()["detail"]


def test_viewers_read_and_operators_do_more(server: ServerProcess) -> None:
    for path in READING:
        for token in ("s3-viewer", "s3-operator"):
            assert ask(server, "GET", path, token).status_code in (200, 404)
    for method, path in OPERATING:
        denied = ask(server, method, path, "s3-viewer")
        assert denied.status_code == 403
        assert "this wants scope operator" in denied.json()["detail"]
        assert ask(server, method, path, "s3-operator").status_code in (200, 404)
    for path in ("/healthz", "/readyz"):
        assert ask(server, "GET", path).status_code == 200


def test_a_browser_names_its_session_in_a_cookie_and_a_bad_header_is_not_forgiven_for_it(
    server: ServerProcess,
) -> None:
    cookie = {"Cookie": "other=1; " + log_in(server, "s3-viewer").headers["set-cookie"].split(";")[0]}
    assert ask(server, "GET", "/api/v1/jobs", **cookie).status_code == 200
    assert ask(server, "GET", "/api/v1/jobs", "s3-wrong", **cookie).status_code == 401
    assert ask(server, "GET", "/api/v1/jobs", Authorization="Basic s3-viewer").status_code == 401


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", "wants a token"),
        ("s3-agen", "does not know the token"),
        ("s3-old", "ended on 2020-01-01"),
        ("s3-viewer", "of scope viewer, this wants scope agent"),
    ],
)
def test_an_agent_without_a_good_token_is_told_what_is_wrong_with_it(
    server: ServerProcess, token: str, words: str
) -> None:
    line = open_line(server.url, token)
    said = reply(line)
    assert isinstance(said, wire.Refused)
    assert words in said.reason
    with pytest.raises(ConnectionClosed):
        line.recv(timeout=10)


def test_a_wrong_token_is_counted_however_it_is_shown(server: ServerProcess) -> None:
    def wrong() -> float:
        figures = ask(server, "GET", "/metrics", "s3-viewer").text
        (line,) = [
            line for line in figures.splitlines() if line.startswith('ncclwatch_tokens_denied_total{why="wrong"')
        ]
        return float(line.split()[1])

    before = wrong()
    url, shown = server.url + "/api/v1/jobs/a/stacks", {"Authorization": "Bearer s3-viewe"}
    for method in ("GET", "HEAD", "OPTIONS", "POST"):
        assert ask(server, method, "/api/v1/nothing", "s3-viewe").status_code == 401
    assert httpx2.post(url, headers=shown, content=b"x" * 20_000, timeout=10).status_code == 401
    assert httpx2.post(url, headers=shown, content=iter([b"x" * 20_000]), timeout=10).status_code == 401
    assert log_in(server, "s3-viewe").status_code == 401
    assert isinstance(reply(open_line(server.url, "s3-viewe")), wire.Refused)
    # Figures are as of the last tick, so `before` may lack wrong tokens of the test before this one.
    until(lambda: wrong() >= before + 8, what="eight more wrong tokens")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:1", "file://", "http://[:"])
def test_a_page_of_another_origin_opens_no_websocket_and_changes_nothing(server: ServerProcess, origin: str) -> None:
    address = server.url.replace("http", "ws", 1) + wire.AGENT_PATH
    with pytest.raises(InvalidStatus) as refused:
        connect(address, additional_headers={"Authorization": "Bearer s3-agent"}, origin=origin, proxy=None)
    assert refused.value.response.status_code == 403
    assert b"may not do this" in refused.value.response.body
    assert ask(server, "DELETE", "/api/v1/jobs/job", "s3-operator", Origin=origin).status_code == 403
    assert ask(server, "GET", "/api/v1/jobs", "s3-operator", Origin=origin).status_code == 200


def test_a_page_of_our_own_may(server: ServerProcess) -> None:
    address = server.url.replace("http", "ws", 1) + wire.AGENT_PATH
    with connect(
        address, additional_headers={"Authorization": "Bearer s3-agent"}, origin=server.url, proxy=None
    ) as line:
        hello(line)
        assert isinstance(reply(line), wire.Welcome)
    assert ask(server, "DELETE", "/api/v1/jobs/none", "s3-operator", Origin=server.url).status_code == 404


def test_what_is_too_long_is_refused_and_the_server_goes_on(server: ServerProcess) -> None:
    url, headers = server.url + "/api/v1/jobs", {"Authorization": "Bearer s3-viewer"}
    announced = httpx2.request("GET", url, headers=headers, content=b"x" * (2 * 1024 * 1024), timeout=10)
    assert (announced.status_code, announced.headers["connection"]) == (413, "close")
    pieces = (b"x" * 65536 for _ in range(17))
    chunked = httpx2.request("DELETE", server.url + "/api/v1/jobs/a", headers=headers, content=pieces, timeout=10)
    assert chunked.status_code in (403, 413)  # what it says first; the rest is not kept
    line = open_line(server.url, "s3-agent")
    hello(line)
    assert isinstance(reply(line), wire.Welcome)
    with pytest.raises(ConnectionClosed) as closed:
        line.send(b"x" * 1024 * 1024 for _ in range(17))  # in fragments
        while line.recv(timeout=10):
            pass
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1008
    assert ask(server, "GET", "/healthz").status_code == 200


def test_stacks_and_deletions_are_written_down_and_only_operators_read_them(server: ServerProcess) -> None:
    with FakeAgent(server.url, token="s3-agent", job="audited") as agent:
        until(lambda: agent.progress > 1)
        agent.hang(1)
        until(lambda: any(i["stacks"] for i in _incidents(server, "audited")), what="stacks")
        there = f"{server.url}/api/v1/jobs/audited/capture"
        for token, code in (("", 401), ("s3-viewer", 403), ("s3-agent", 403), ("s3-operator", 200)):
            shown = {"Authorization": f"Bearer {token}"} if token else {}
            assert httpx2.post(there, headers=shown, json={}, timeout=30).status_code == code
        running = ask(server, "DELETE", "/api/v1/jobs/audited", "s3-operator")
        assert (running.status_code, "goes on" in running.text) == (409, True)
        agent.end(0, Ending(kind="exited", exit_code=0))
        agent.end(1, Ending(kind="exited", exit_code=0))
        agent.gone()
        until(lambda: ask(server, "GET", "/api/v1/jobs/audited", "s3-viewer").json()["state"] == "ended")
    deleted = ask(server, "DELETE", "/api/v1/jobs/audited", "s3-operator")
    assert deleted.status_code == 200, deleted.text
    assert deleted.json()["incidents"] == 1
    assert _incidents(server, "audited") == []
    assert ask(server, "GET", "/api/v1/jobs/audited", "s3-viewer").status_code == 404
    assert ask(server, "DELETE", "/api/v1/jobs/audited", "s3-operator").status_code == 404
    page = ask(server, "GET", "/api/v1/audit?job=audited&limit=1000", "s3-operator").json()
    told = [(e["who"], e["act"], e["job"]) for e in page["entries"]]
    assert told[0] == ("alice", "delete", "audited")
    assert ("ncclwatch-server", "stacks", "audited") in told
    assert told.count(("alice", "capture", "audited")) == 1
    assert page["next"] is None
    newest = ask(server, "GET", "/api/v1/audit?limit=1", "s3-operator").json()
    older = ask(server, "GET", f"/api/v1/audit?limit=1&before={newest['next']}", "s3-operator").json()
    assert newest["entries"][0]["id"] > older["entries"][0]["id"]
    assert "alice: delete of job audited" in server.log.read_text()
    for secret in ("s3-agent", "s3-viewer", "s3-operator", "s3-old"):
        assert secret not in server.log.read_text()


def _incidents(server: ServerProcess, job: str) -> list[dict]:
    return ask(server, "GET", f"/api/v1/incidents?job={job}", "s3-viewer").json()


PAGES = ("/jobs", "/incidents", "/report", "/settings", "/jobs/job", "/incidents/none", "/hosts/none")


def log_in(server: ServerProcess, token: str, **headers: str) -> httpx2.Response:
    """Do what the login page's form does."""
    form = {"token": token, "next": "/settings"}
    return httpx2.post(server.url + "/login", data=form, headers={"Origin": server.url, **headers}, timeout=10)


@pytest.mark.parametrize("token", ["", "s3-viewe", "s3-viewer", "s3-agent"])
def test_a_page_leads_whoever_may_not_read_it_to_the_login(server: ServerProcess, token: str) -> None:
    for path in PAGES:
        answer = ask(server, "GET", path, Cookie=f"ncclwatch_session={token}")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={path.replace('/', '%2F')}")
    for path in ("/live/jobs", "/live/jobs/job", "/matrix/job", "/live/incidents/none", "/api/v1/stream"):
        assert ask(server, "GET", path, Cookie=f"ncclwatch_session={token}").status_code in (401, 403)


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", "wants a token"),
        ("s3-viewe", "does not know the token"),
        ("s3-old", "the token of bob ended on 2020-01-01"),
        ("s3-agent", "this wants scope viewer"),
        ("größe", "plain letters"),
        ("x" * 9000, "too long"),
    ],
)
def test_the_login_page_says_what_is_wrong_with_a_token(server: ServerProcess, token: str, words: str) -> None:
    answer = log_in(server, token)
    assert answer.status_code == 401
    assert words in answer.text
    assert "set-cookie" not in answer.headers


def test_who_has_logged_in_may_do_what_the_token_allows_and_no_more(server: ServerProcess) -> None:
    for token, deletes in (("s3-viewer", 403), ("s3-operator", 404)):
        answer = log_in(server, token)
        assert (answer.status_code, answer.headers["location"]) == (303, "/settings")
        cookie, *rules = answer.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=strict"} <= set(rules)
        assert token not in cookie
        for path in PAGES[:3]:
            page = ask(server, "GET", path, Cookie=cookie)
            assert page.status_code == 200
            assert not [secret for secret in TOKENS.values() if secret.split()[0] in page.text]
            assert "default-src 'none'" in page.headers["content-security-policy"]
        own = {"Cookie": cookie, "Origin": server.url}
        assert ask(server, "DELETE", "/api/v1/jobs/none", **own).status_code == deletes
        assert ask(server, "DELETE", "/api/v1/jobs/none", Cookie=cookie, Origin="http://evil").status_code == 403


def test_a_cookie_is_good_for_nothing_after_logging_out(server: ServerProcess) -> None:
    mine, other = (log_in(server, "s3-viewer").headers["set-cookie"].split(";")[0] for _ in range(2))
    assert mine != other
    out = ask(server, "POST", "/logout", Origin=server.url, Cookie=mine)
    assert out.status_code == 303
    assert ask(server, "GET", "/api/v1/jobs", Cookie=mine).status_code == 401
    assert ask(server, "GET", "/api/v1/jobs", Cookie=other).status_code == 200


def test_nobody_is_believed_who_says_for_whom_he_asks(server: ServerProcess) -> None:
    forged = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https", "Forwarded": "for=203.0.113.9"}
    ask(server, "POST", "/api/v1/jobs/forged/stacks", "s3-operator", **forged)
    (entry,) = ask(server, "GET", "/api/v1/audit?job=forged", "s3-operator").json()["entries"]
    assert entry["detail"].startswith("from 127.0.0.1:")
    said = httpx2.post(server.url + "/login", data={"token": "s3-viewer"}, headers={"Origin": server.url, **forged})
    assert "Secure" not in said.headers["set-cookie"]


def test_no_page_of_a_stranger_logs_anybody_in_or_out(server: ServerProcess) -> None:
    assert log_in(server, "s3-viewer", Origin="http://evil.example").status_code == 403
    assert ask(server, "POST", "/logout", Origin="http://evil.example").status_code == 403
    assert "Max-Age=0" in ask(server, "POST", "/logout", Origin=server.url).headers["set-cookie"]


def test_who_guesses_gets_few_answers_and_a_holder_beside_him_is_not_kept_waiting(tmp_path: Path) -> None:
    token = "Vq3nXt8LmB0wRz5KcY7h"
    with ServerProcess(tmp_path, token=token) as server:
        assert ask(server, "GET", "/api/v1/jobs", token).status_code == 200
        until_s, answers = time.monotonic() + 6.0, Counter()

        def guess(number: int) -> None:
            with httpx2.Client(base_url=server.url, timeout=30) as client:
                while time.monotonic() < until_s:
                    shown = {"Authorization": f"Bearer wrong-{number}-{answers.total()}"}
                    answers[client.get("/api/v1/jobs", headers=shown).status_code] += 1

        guessing = [threading.Thread(target=guess, args=(number,)) for number in range(16)]
        for each in guessing:
            each.start()
        until(lambda: answers[401] > 20)
        took_s = []
        for _ in range(5):
            began = time.monotonic()
            assert ask(server, "GET", "/api/v1/jobs", token).status_code == 200
            took_s.append(time.monotonic() - began)
        with FakeAgent(server.url, token=token, job="beside") as agent:
            until(lambda: agent.progress > 0)
        for each in guessing:
            each.join(30)
        server.process.terminate()
        server.process.wait(20)
    assert min(took_s) < 1.0  # the slowest of them says how busy the machine is
    assert answers[401] < 200  # more than 6,000 without the waits
    assert " wrong tokens came from 127.0.0.1" in server.log.read_text()
