"""Who may do what, by token and scope."""

import asyncio
import time

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from ncclwatch.contract.network.tokens import Token
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.ingest.session import _refuse_at_the_end
from ncclwatch_server.security.access import AuditedGate
from ncclwatch_server.security.audit import Act, AuditTrail
from ncclwatch_server.security.scopes import EVERYTHING, Access, Caller, Denial, Grant, Lack, Scope
from ncclwatch_server.store.no_store import NoStore

NOW = 1_800_000_000.0
GRANTS = (
    Grant(token=Token(secret="s3-agents"), scopes=frozenset({Scope.AGENT})),
    Grant(token=Token(secret="s3-wall", name="the wall"), scopes=frozenset({Scope.VIEWER})),
    Grant(
        token=Token(secret="s3-alice", name="alice", until=NOW + 1), scopes=frozenset({Scope.OPERATOR, Scope.VIEWER})
    ),
    Grant(token=Token(secret="s3-bob", name="bob", until=NOW), scopes=EVERYTHING),
)


def access() -> Access:
    return Access(GRANTS, wall=lambda: NOW)


def judge(gate: Access, shown: str, scope: Scope) -> Caller | Denial:
    return gate.permit(gate.recognise("10.0.0.7", shown, scope)[0], scope)


@pytest.mark.parametrize(
    ("shown", "scope", "name"),
    [
        ("s3-agents", Scope.AGENT, "an unnamed agent"),
        ("s3-wall", Scope.VIEWER, "the wall"),
        ("s3-alice", Scope.VIEWER, "alice"),
        ("s3-alice", Scope.OPERATOR, "alice"),
    ],
)
def test_a_token_of_the_scope_lets_in_and_says_who(shown: str, scope: Scope, name: str) -> None:
    found = judge(access(), shown, scope)
    assert isinstance(found, Caller)
    assert found.name == name


@pytest.mark.parametrize(
    ("shown", "scope", "lack", "status", "words"),
    [
        ("", Scope.VIEWER, Lack.ABSENT, 401, "wants a token; set NCCLWATCH_TOKEN or NCCLWATCH_VIEWER_TOKEN"),
        ("agent", Scope.AGENT, Lack.WRONG, 401, "does not know the token"),
        ("s3-agents\ud800\x00", Scope.AGENT, Lack.WRONG, 401, "does not know the token"),
        ("s3-bob", Scope.VIEWER, Lack.EXPIRED, 401, "the token of bob ended on 2027-01-15 08:00 UTC"),
        ("s3-agents", Scope.VIEWER, Lack.SCOPE, 403, "of scope agent, this wants scope viewer"),
        ("s3-wall", Scope.AGENT, Lack.SCOPE, 403, "of scope viewer, this wants scope agent"),
        (
            "s3-wall",
            Scope.OPERATOR,
            Lack.SCOPE,
            403,
            "this wants scope operator; set NCCLWATCH_TOKEN or NCCLWATCH_OPER",
        ),
        ("s3-alice", Scope.AGENT, Lack.SCOPE, 403, "of scope operator and viewer, this wants scope agent"),
    ],
)
def test_what_is_wrong_with_a_token_is_said(shown: str, scope: Scope, lack: Lack, status: int, words: str) -> None:
    gate = access()
    found = judge(gate, shown, scope)
    assert isinstance(found, Denial)
    assert (found.lack, found.status) == (lack, status)
    assert words in found.sentence
    assert "s3-" not in found.sentence
    assert gate.denials == {lack: 1}


def test_without_any_token_everyone_may_do_everything() -> None:
    open_to_all = Access()
    assert not open_to_all.guarded
    assert all(judge(open_to_all, "", scope) == Caller(name="anyone") for scope in Scope)


def test_a_token_counts_until_its_very_end() -> None:
    now = [NOW]
    gate = Access(GRANTS, wall=lambda: now[0])
    assert isinstance(judge(gate, "s3-alice", Scope.VIEWER), Caller)
    now[0] = NOW + 1
    assert isinstance(judge(gate, "s3-alice", Scope.VIEWER), Denial)


def test_all_tokens_are_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("ncclwatch_server.security.scopes.hmac.compare_digest", compare)
    for shown in ("s3-agents", "s3-bob", "a", "x" * 10_000):
        compared.clear()
        judge(access(), shown, Scope.AGENT)
        assert compared == [(32, 32)] * len(GRANTS)


def test_an_agents_connection_ends_with_its_token() -> None:
    async def scene(until: float | None) -> str:
        woken = asyncio.Event()
        link = Link(number=1, agent="a", host="h", version="1", wake=woken.set)
        timer = _refuse_at_the_end(Caller(name="nodes", until=until), link)
        if until is not None and until < time.time() + 60:
            await asyncio.wait_for(woken.wait(), 30)
            assert link.closing
        else:
            await asyncio.sleep(0)
        if timer is not None:
            timer.cancel()
        return link.refusal

    assert asyncio.run(scene(time.time() + 0.05)) == "the token of nodes has ended"
    assert asyncio.run(scene(time.time() + 1e9)) == ""
    assert asyncio.run(scene(None)) == ""


def test_a_look_into_ranks_is_written_down_before_it_is_done_and_a_denied_one_is_not() -> None:
    app, kept = FastAPI(), NoStore()
    gate = AuditedGate(access(), AuditTrail(kept), Act.STACKS)

    @app.post("/jobs/{job}/stacks", dependencies=[Depends(gate)])
    async def stacks(job: str, wanted: dict[str, list[int]]) -> list[str]:
        return [entry.detail for entry in kept.audit_log(1)]

    client = TestClient(app)
    denied = client.post("/jobs/a/stacks", json={"ranks": [1]}, headers={"Authorization": "Bearer s3-wall"})
    assert (denied.status_code, kept.audit_log(9)) == (403, [])
    said = client.post("/jobs/a/stacks", json={"ranks": [3, 4]}, headers={"Authorization": "Bearer s3-alice"})
    assert said.json() == ['from testclient: {"ranks":[3,4]}']
    (entry,) = kept.audit_log(9)
    assert (entry.who, entry.act, entry.job) == ("alice", "stacks", "a")
