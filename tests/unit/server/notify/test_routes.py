"""Silences over HTTP: who may read, who may change, and what is said of what cannot be."""

import time
from datetime import datetime, timedelta, timezone

import pytest
from fastapi import FastAPI, HTTPException, Request
from starlette.testclient import TestClient

from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.routes import silence_routes
from ncclwatch_server.notify.silences import Silences
from ncclwatch_server.security.audit import AuditTrail
from ncclwatch_server.security.scopes import Caller
from ncclwatch_server.store.no_store import NoStore
from tests.unit.server.incidents.test_texts import INCIDENT

PATH = "/api/v1/silences"


class Gates:
    """Counts who passes, and can be closed."""

    def __init__(self) -> None:
        self.reads = 0
        self.closed = False

    def read(self, request: Request) -> Caller:
        """Let everybody read."""
        self.reads += 1
        return Caller(name="anyone")

    def change(self, request: Request) -> Caller:
        """Let nobody change anything while closed."""
        if self.closed:
            raise HTTPException(status_code=403, detail="no")
        return Caller(name="alice")


@pytest.fixture
def silences() -> Silences:
    return Silences((), Records(""), time.time)


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
def store() -> NoStore:
    return NoStore()


@pytest.fixture
def client(silences: Silences, gates: Gates, store: NoStore) -> TestClient:
    app = FastAPI()
    app.include_router(silence_routes(silences, AuditTrail(store), gates.read, gates.change))
    return TestClient(app)


def test_a_silence_is_made_listed_and_ended(client: TestClient, silences: Silences) -> None:
    made = client.post(PATH, json={"job": "job", "lasts_s": 60, "reason": "upgrade", "signed": "me@head"})
    assert made.status_code == 201
    body = made.json()
    assert (body["job"], body["state"], body["reason"]) == ("job", "active", "upgrade")
    assert (body["author"], body["signed"]) == ("alice", "me@head")
    assert 55 < silences.muted_for(INCIDENT) <= 60
    assert client.get(PATH).json() == [body]
    assert client.get(f"{PATH}/{body['id']}").json() == body
    ended = client.delete(f"{PATH}/{body['id']}")
    assert ended.json()["state"] == "expired"
    assert silences.muted_for(INCIDENT) == 0.0
    assert client.get(PATH, params={"state": "active"}).json() == []
    assert client.get(PATH, params={"state": "expired"}).json() == [ended.json()]
    assert client.delete(f"{PATH}/{body['id']}").json() == ended.json()


def test_a_window_begins_and_ends_when_it_is_told_to(client: TestClient) -> None:
    begins = (datetime.now(timezone.utc) + timedelta(hours=1)).replace(microsecond=0)
    zone = timezone(timedelta(hours=-8))
    body = {"job": "p-*", "starts_at": begins.astimezone(zone).isoformat()}
    made = client.post(PATH, json={**body, "ends_at": (begins + timedelta(hours=2)).isoformat()}).json()
    assert made["state"] == "pending"
    assert [datetime.fromisoformat(made[end]) for end in ("starts_at", "ends_at")] == [
        begins, begins + timedelta(hours=2),
    ]  # fmt: skip
    again = client.post(PATH, json={**body, "lasts_s": 7200}).json()
    assert (again["starts_at"], again["ends_at"]) == (made["starts_at"], made["ends_at"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"job": "job"}, 400),
        ({"job": "job", "lasts_s": 60, "ends_at": "2100-01-01T00:00:00Z"}, 400),
        ({"job": "job", "ends_at": "2100-01-01T00:00:00Z"}, 400),
        ({"job": "job", "ends_at": "2000-01-01T00:00:00Z"}, 400),
        ({"job": "job", "ends_at": "0001-01-01T00:00:00+14:00"}, 400),
        ({"job": "job", "ends_at": "9999-12-31T23:59:59-14:00"}, 400),
        ({"job": "a\u0000b", "lasts_s": 60}, 400),
        ({"job": "job", "lasts_s": 60, "reason": "a\nb"}, 400),
        ({"job": "", "lasts_s": 60}, 422),
        ({"job": "x" * 201, "lasts_s": 60}, 422),
        ({"job": "job", "lasts_s": 0}, 422),
        ({"job": "job", "lasts_s": 1e300}, 422),
        ({"job": "job", "ends_at": "2100-01-01T00:00:00"}, 422),
        ({"job": 7, "lasts_s": 60}, 422),
        ([], 422),
    ],
)
def test_what_is_no_silence_is_refused(client: TestClient, silences: Silences, body: object, status: int) -> None:
    answer = client.post(PATH, json=body)
    assert answer.status_code == status
    assert answer.json()["detail"]
    assert silences.all() == ()


def test_a_page_of_a_stranger_cannot_make_a_silence(client: TestClient, silences: Silences) -> None:
    body = b'{"job": "*", "lasts_s": 60}'
    for headers in ({"content-type": "text/plain"}, {"content-type": ""}, {}):
        assert client.post(PATH, content=body, headers=headers).status_code == 415
    assert silences.all() == ()


def test_reading_and_changing_have_gates_of_their_own(client: TestClient, silences: Silences, gates: Gates) -> None:
    gates.closed = True
    known = silences.add("job", time.time(), time.time() + 60)
    assert client.post(PATH, json={"job": "x", "lasts_s": 60}).status_code == 403
    assert client.delete(f"{PATH}/{known.id}").status_code == 403
    assert silences.muted_for(INCIDENT) > 0
    assert client.get(PATH).status_code == 200
    assert gates.reads == 1


def test_a_silence_that_nobody_knows_is_a_sentence(client: TestClient) -> None:
    for answer in (client.get(f"{PATH}/nope"), client.delete(f"{PATH}/nope")):
        assert answer.status_code == 404
        assert "no silence 'nope'" in answer.json()["detail"]


def test_who_made_and_who_ended_a_silence_is_in_the_audit_log_whatever_they_say_of_themselves(
    client: TestClient, store: NoStore
) -> None:
    made = client.post(PATH, json={"job": "prod-*", "lasts_s": 60, "author": "the boss", "signed": "root@head"}).json()
    assert made["author"] == "alice"
    for _ in range(2):  # the second time there is nothing to end
        client.delete(f"{PATH}/{made['id']}")
    ended, begun = store.audit_log(9)
    assert [(e.who, e.act, e.job) for e in (begun, ended)] == [
        ("alice", "silence", "prod-*"), ("alice", "unsilence", "prod-*"),
    ]  # fmt: skip
    assert begun.detail.startswith(f"from testclient: silence {made['id']}, {made['starts_at']} to {made['ends_at']}")
    assert begun.detail.endswith("(signed root@head)")


def test_a_silence_that_is_refused_is_not_in_the_audit_log(client: TestClient, store: NoStore, gates: Gates) -> None:
    gates.closed = True
    client.post(PATH, json={"job": "x", "lasts_s": 60})
    gates.closed = False
    client.post(PATH, json={"job": "x", "lasts_s": 60, "ends_at": "2100-01-01T00:00:00Z"})
    assert store.audit_log(9) == []
