"""The lease is one row that only its holder changes, or whoever has seen it as it is."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from ncclwatch.contract.model.job import WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch_server.incidents.book import IncidentState
from ncclwatch_server.leadership.elector import Elector
from ncclwatch_server.leadership.lease import Candidate, LeaseTable, LeaseUnavailable
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.silences import Silence
from ncclwatch_server.notify.stages import Stage, Told
from ncclwatch_server.state.waits.history import Lesson
from ncclwatch_server.store import database, tables
from ncclwatch_server.store.incident_store import Store
from tests.postgres import Postgres
from tests.unit.server.incidents.test_texts import INCIDENT


@pytest.fixture
def two(store_url: str) -> Iterator[tuple[LeaseTable, LeaseTable]]:
    first, second = (LeaseTable(store_url, Candidate(id=name, url=f"http://{name}")) for name in "ab")
    yield first, second
    first.close()
    second.close()


def test_the_first_takes_it_and_keeps_it(two: tuple[LeaseTable, LeaseTable]) -> None:
    a, b = two
    assert a.read()[0] is None
    assert b.read()[0] is None
    mine = a.acquire(None)
    assert mine is not None
    assert b.acquire(None) is None
    renewed = a.renew(mine)
    assert renewed is not None
    seen, others = b.read()
    assert (seen, [each.url for each in others]) == (renewed, ["http://a"])


def test_one_that_was_renewed_meanwhile_is_not_taken(two: tuple[LeaseTable, LeaseTable]) -> None:
    a, b = two
    a.read()
    mine = a.acquire(None)
    assert mine is not None
    seen, _ = b.read()
    assert a.renew(mine) is not None
    assert b.acquire(seen) is None
    seen, _ = b.read()
    taken = b.acquire(seen)
    assert taken is not None
    assert (taken.holder, taken.term) == ("b", 2)
    assert a.renew(mine) is None


def test_one_that_leaves_is_no_candidate_and_a_lost_lease_is_not_released(two: tuple[LeaseTable, LeaseTable]) -> None:
    a, b = two
    a.read()
    mine = a.acquire(None)
    taken = b.acquire(b.read()[0])
    assert taken is not None
    a.leave(mine)
    seen, others = b.read()
    assert (seen, others) == (taken, ())
    b.leave(taken)
    seen, others = a.read()
    assert seen is not None
    assert (seen.holder, others) == ("", ())


def test_who_is_silent_can_be_forgotten(two: tuple[LeaseTable, LeaseTable]) -> None:
    a, b = two
    a.read()
    b.read()
    b.forget(("a",))
    assert b.read()[1] == ()
    assert [each.id for each in a.read()[1]] == ["b"]


def test_a_database_that_is_away_is_said(tmp_path: Path) -> None:
    table = LeaseTable("postgresql://127.0.0.1:1/none", Candidate(id="a", url="http://a"))
    with pytest.raises(LeaseUnavailable, match=r"postgresql://127.0.0.1:1/none"):
        table.read()


def test_a_database_that_is_halted_is_said_soon(postgres: Postgres) -> None:
    """It keeps no deadline then, and its kernel acknowledges all that it is sent."""
    leases = LeaseTable(postgres.new_database(), Candidate(id="a", url="http://a"))
    elector = Elector(leases, lambda _: None)
    assert elector.follow()
    assert postgres.process is not None
    main = psutil.Process(postgres.process.pid)
    halted = [main, *main.children(recursive=True)]
    for process in halted:
        process.suspend()
    try:
        for _ in range(2):  # in the second one it connects anew
            going = threading.Thread(target=elector.lead, daemon=True)
            going.start()
            going.join(30)
            assert not going.is_alive()
            assert elector.problem
        assert elector.leads
    finally:
        for process in halted:
            process.resume()
    deadline = time.monotonic() + 20
    while elector.problem:
        assert elector.lead()
        assert time.monotonic() < deadline, elector.problem
    leases.close()


def second_term(store_url: str) -> None:
    leases = LeaseTable(store_url, Candidate(id="b", url="http://b"))
    leases.read()
    first = leases.acquire(None)
    assert first is not None
    second = leases.acquire(first)
    assert second is not None
    leases.close()


def test_what_an_older_leader_still_writes_replaces_nothing_of_a_newer_one(store_url: str) -> None:
    second_term(store_url)
    over = replace(INCIDENT, state=IncidentState.ENDED, closed_at=1_800_000_009.0)
    with Store(store_url, term=2) as newer:
        newer.put(over)
    with Store(store_url, term=1) as older:
        older.put(INCIDENT)
        older.put(replace(INCIDENT, id="open"))  # the newer leader has judged it anew
        older.put(replace(over, id="closed"))  # and this one it has never seen
    with Store(store_url, term=2) as newer:
        assert {each.id: each.state for each in newer.load()} == {
            INCIDENT.id: IncidentState.ENDED,
            "closed": IncidentState.ENDED,
        }
    engine = database.connect(store_url)
    with engine.connect() as connection:
        rows = connection.execute(select(tables.incidents.c.id, tables.incidents.c.term)).all()
    engine.dispose()
    assert {row.id: row.term for row in rows} == {INCIDENT.id: 2, "closed": 1}


def test_what_an_older_leader_has_told_and_learned_replaces_nothing_of_a_newer_one(store_url: str) -> None:
    second_term(store_url)
    kind = WaitClass(phase=Phase.STEP, op="all_reduce", size=4)
    silence = Silence(id="s", job="job", starts_at=1_800_000_000.0, ends_at=1_800_000_060.0)
    firing = Told(stage=Stage.FIRING, count=1, digest="d", urgency=1)
    resolved = replace(firing, stage=Stage.RESOLVED, count=2)
    with Store(store_url, term=2) as newer:
        newer.learn("job", Lesson(kind=kind, waits=90))
    with Records(store_url, term=2) as told:
        told.note("hook", "one", resolved)
        told.keep_silence(replace(silence, ends_at=1_800_000_001.0))
    with Store(store_url, term=1) as older:
        older.learn("job", Lesson(kind=kind, waits=9))
        older.learn("another", Lesson(kind=kind, waits=9))
    with Records(store_url, term=1) as told:
        told.note("hook", "one", firing)
        told.note("hook", "two", firing)
        told.keep_silence(silence)
    with Records(store_url) as told:
        assert [told.told("hook", each) for each in ("one", "two")] == [resolved, firing]
        assert [each.ends_at for each in told.silences] == [1_800_000_001.0]
    with Store(store_url) as store:
        lessons = {job: [each.waits for each in taught] for job, taught in store.lessons().items()}
    assert lessons == {"job": [90], "another": [9]}


def test_a_leader_writes_as_a_single_server_does(store_url: str) -> None:
    with Store(store_url) as single:
        single.put(INCIDENT)
    with Store(store_url, term=1) as leader:
        leader.put(replace(INCIDENT, state=IncidentState.RESOLVED))
        leader.put(replace(INCIDENT, id="new"))
    with Store(store_url, term=1) as leader:
        assert {each.id: each.state for each in leader.load()} == {
            INCIDENT.id: IncidentState.RESOLVED,
            "new": IncidentState.OPEN,
        }


def test_a_single_server_writes_also_what_a_leader_wrote_before(store_url: str) -> None:
    with Store(store_url, term=3) as leader:
        leader.put(INCIDENT)
    with Store(store_url) as single:
        single.put(replace(INCIDENT, state=IncidentState.RESOLVED))
    with Store(store_url) as single:
        assert [each.state for each in single.load()] == [IncidentState.RESOLVED]
