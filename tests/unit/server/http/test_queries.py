"""Readers get what is in memory at once, and what only the store knows if it answers soon."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fastapi import HTTPException

from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch_server.http import queries
from ncclwatch_server.http.queries import Reader
from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState, JobKey
from ncclwatch_server.incidents.losses import Loss, loss_of
from ncclwatch_server.incidents.pagination import Wanted
from ncclwatch_server.store.health import StoreHealth
from ncclwatch_server.store.incident_store import StoreFailed
from ncclwatch_server.store.no_store import NoStore
from ncclwatch_server.watch.tick import Watch


def incident(number: int) -> Incident:
    verdict = Verdict(
        cause=Cause.DATA_STALL, certainty=Certainty.PROVEN, severity=Severity.CRITICAL, summary=f"number {number}",
        explanation="", advice="", culprits=(), victims=(),
    )  # fmt: skip
    return Incident(
        id=f"i{number}", key=JobKey(name="job", instance="", attempt=0), job="job", world_size=2,
        state=IncidentState.ENDED, verdict=verdict, onset_to_open_s=1.0, opened_at=1e9 - number, closed_at=1e9,
    )  # fmt: skip


class Archive:
    """A store with one incident more than the server has in memory. It answers when it is let."""

    def __init__(self, *, working: bool = True, answers: bool = True) -> None:
        self.asked = 0
        self.answers = threading.Event()
        self._working = working
        if answers:
            self.answers.set()

    def find(self, wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        self.asked += 1
        self.answers.wait(60)
        return (incident(2),)

    def get(self, incident_id: str) -> Incident | None:
        self.asked += 1
        self.answers.wait(60)
        return incident(2) if incident_id == "i2" else None

    def losses(self, since: float, held: frozenset[str], limit: int) -> tuple[Loss, ...]:
        self.asked += 1
        self.answers.wait(60)
        loss = loss_of(incident(2))
        assert loss is not None
        assert "i1" in held
        return (loss,)[:limit]

    def health(self) -> StoreHealth:
        return StoreHealth(place="here", working=self._working)


def asked(archive: Archive, question: Callable[[Reader], Coroutine[Any, Any, Any]]) -> Any:
    """Return what a reader answers who has one incident in memory."""
    found = Reader(Watch(lambda snapshot: (), IncidentBook([incident(1)]), NoStore()), archive)
    try:
        return asyncio.run(question(found))
    finally:
        archive.answers.set()
        found.close()


async def listed(found: Reader) -> list[str]:
    return [each.id for each in (await found.page(Wanted())).incidents]


def test_what_only_the_store_knows_is_found():
    assert asked(Archive(), listed) == ["i1", "i2"]
    assert asked(Archive(), lambda found: found.incident("i2")) == incident(2)


def test_hangs_in_memory_and_in_the_store_are_summed_up_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queries.time, "time", lambda: 1e9)
    found = asked(Archive(), lambda found: found.losses(60.0))
    assert (found.total.hangs, found.total.jobs, found.without) == (2, 1, "")
    assert asked(Archive(), lambda found: found.losses(0.5)).total.hangs == 1, "the store says for itself since when"
    monkeypatch.setattr(queries, "LOSSES_MAX", 1)
    assert "the newest 1" in asked(Archive(), lambda found: found.losses(60.0)).without


@pytest.mark.parametrize("archive", [Archive(working=False), Archive(answers=False)])
def test_without_its_store_hangs_in_memory_are_summed_up_and_that_is_said(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(queries.time, "time", lambda: 1e9)
    monkeypatch.setattr(queries, "ARCHIVE_S", 0.05)
    found = asked(archive, lambda found: found.losses(60.0))
    assert (found.total.hangs, "only hangs in memory are counted" in found.without) == (1, True)


def test_what_is_in_memory_is_not_asked_for():
    archive = Archive()
    assert asked(archive, lambda found: found.incident("i1")) == incident(1)
    assert archive.asked == 0


def test_a_store_that_does_not_answer_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queries, "ARCHIVE_S", 0.05)
    archive = Archive(answers=False)

    async def readers(found: Reader) -> list[list[str]]:
        return await asyncio.gather(*(listed(found) for _ in range(20)))

    assert asked(archive, readers) == [["i1"]] * 20
    assert archive.asked == 1  # who gave up is not asked for later


def test_a_store_that_is_known_to_fail_is_not_asked():
    archive = Archive(working=False, answers=False)
    assert asked(archive, listed) == ["i1"]
    with pytest.raises(HTTPException, match="503: no incident 'i2' is in memory, and the incident store here does not"):
        asked(archive, lambda found: found.incident("i2"))
    assert archive.asked == 0
    assert "the incident store here does not answer" in asked(archive, lambda found: found.page(Wanted())).without


def test_a_store_that_fails_when_it_is_asked_is_said_to_be_away():
    class Failing(Archive):
        def find(self, wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
            raise StoreFailed("no")

        def get(self, incident_id: str) -> Incident | None:
            raise StoreFailed("no")

    page = asked(Failing(), lambda found: found.page(Wanted()))
    assert [each.id for each in page.incidents] == ["i1"]
    assert page.without
    with pytest.raises(HTTPException, match="503"):
        asked(Failing(), lambda found: found.incident("i2"))


def test_nothing_is_missing_where_the_store_answers():
    assert asked(Archive(), lambda found: found.page(Wanted())).without == ""
    with pytest.raises(HTTPException, match="404: no incident 'i3'"):
        asked(Archive(), lambda found: found.incident("i3"))
