"""What a store keeps no longer: the old, the surplus, and what an operator deletes. The audit log keeps its lines."""

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import DatabaseError

from ncclwatch_server.incidents.book import Incident, IncidentBook, IncidentState
from ncclwatch_server.security.audit import Act, AuditTrail
from ncclwatch_server.settings import Keeping
from ncclwatch_server.state.waits.history import Lesson
from ncclwatch_server.store import database, retention
from ncclwatch_server.store.incident_store import Store, StoreFailed
from ncclwatch_server.store.no_store import NoStore
from tests.unit.server.incidents.test_texts import INCIDENT
from tests.unit.server.store.test_incident_store import SAVE, STEP, execute

DAY_S = 86_400.0


def closed(name: str, age_days: float, job: str = "job", state: IncidentState = IncidentState.ENDED) -> Incident:
    at = time.time() - age_days * DAY_S
    ended = None if state is IncidentState.OPEN else at
    return replace(INCIDENT, id=name, job=job, state=state, opened_at=at - 60, closed_at=ended)


def test_the_old_and_the_surplus_go_and_what_is_open_stays(store_url: str) -> None:
    incidents = [
        closed("old", 31), closed("young", 29), closed("open", 400, state=IncidentState.OPEN),
        closed("1", 1, "busy"), closed("2", 2, "busy"), closed("3", 3, "busy"), closed("4", 4, "busy"),
    ]  # fmt: skip
    book = IncidentBook(incidents)
    book.expire(time.time() - 30 * DAY_S, 3)
    with closing(Store(store_url, Keeping(days=30, incidents_per_job=3))) as store:
        for incident in incidents:
            store.put(incident)
        store._write()
        kept = {"young", "open", "1", "2", "3"}
        assert {incident.id for incident in store.load()} == kept
        assert {incident.id for incident in book.all()} == kept


def test_lessons_go_when_a_job_has_taught_nothing_for_so_long(store_url: str) -> None:
    with closing(Store(store_url, Keeping(days=30))) as store:
        store.learn("a", Lesson(kind=STEP))
        store.learn("a", Lesson(kind=SAVE))
        store._write()
        execute(
            store_url,
            f"UPDATE lessons SET learned_at = {time.time() - 31 * DAY_S} WHERE substr(kind, 1, 10) = 'checkpoint'",
        )
        store._house_at = 0.0
        store._write()
        assert [lesson.kind for lesson in store.lessons()["a"]] == [STEP]


def test_a_deleted_job_is_gone_from_the_store_and_from_what_waits_for_it(store_url: str, tmp_path: Path) -> None:
    secret = replace(INCIDENT, verdict=replace(INCIDENT.verdict, summary="the secret of rank 1"))
    with closing(Store(store_url)) as store:
        store.put(replace(secret, id="1"))
        store.put(replace(INCIDENT, id="other", job="other"))
        store.learn(INCIDENT.job, Lesson(kind=STEP))
        store.learn("other", Lesson(kind=STEP))
        store._write()
        store.put(replace(secret, id="2"))
        removed = store.delete_job(INCIDENT.job)
        assert (removed.incidents, removed.lessons) == (1, 1)
        store._write()
        assert [incident.job for incident in store.load()] == ["other"]
        assert list(store.lessons()) == ["other"]
        # SQLite would leave it in the free pages of its file, and in the log beside it.
        assert not [path for path in tmp_path.iterdir() if b"the secret of rank 1" in path.read_bytes()]


def test_a_deletion_that_fails_says_so(store_url: str) -> None:
    with closing(Store(store_url)) as store:
        store.put(INCIDENT)
        store._write()
        execute(store_url, "ALTER TABLE lessons RENAME TO elsewhere")
        with pytest.raises(StoreFailed, match="cannot delete from"):
            store.delete_job(INCIDENT.job)
        execute(store_url, "ALTER TABLE elsewhere RENAME TO lessons")
        assert [incident.id for incident in store.load()] == [INCIDENT.id]


def test_the_audit_log_is_read_newest_first_in_pages_with_what_still_waits(store_url: str) -> None:
    now = [1_800_000_000.0]
    with closing(Store(store_url)) as store:
        trail = AuditTrail(store, wall=lambda: now[0])
        for number in range(5):
            now[0] += 1
            trail.note("alice", Act.STACKS, "ab"[number % 2], f"rank {number}")
            if number == 2:
                store._write()
        first = store.audit_log(2)
        second = store.audit_log(2, before=first[-1].id)
        rest = store.audit_log(2, before=second[-1].id)
        assert [[e.detail for e in page] for page in (first, second, rest)] == [
            ["rank 4", "rank 3"], ["rank 2", "rank 1"], ["rank 0"],
        ]  # fmt: skip
        assert [e.detail for e in store.audit_log(9, job="b")] == ["rank 3", "rank 1"]
        store._write()
        assert store.audit_log(2) == first


def test_lines_of_the_audit_log_are_written_once_however_often_it_is_tried(store_url: str) -> None:
    with closing(Store(store_url)) as store:
        entry = AuditTrail(store).note("alice", Act.STACKS, "job", "all")
        store._write()
        store.note(entry)  # the database had it, and the answer that it had was lost
        store._write()
        assert store.audit_log(9) == [entry]
        assert (store.failures, store.dropped) == (0, 0)


def test_the_store_itself_keeps_the_lines_of_the_audit_log_for_a_year(store_url: str) -> None:
    now = [time.time() - 366 * DAY_S]
    with closing(Store(store_url)) as store:
        trail = AuditTrail(store, wall=lambda: now[0])
        trail.note("alice", Act.DELETE, "long ago", "")
        now[0] = time.time() - 364 * DAY_S
        trail.note("alice", Act.DELETE, "lately", "")
        store._write_batch()
        for statement in ("DELETE FROM audit WHERE job = 'lately'", "UPDATE audit SET who = 'bob'"):
            with pytest.raises(DatabaseError, match="append-only"):
                execute(store_url, statement)
        store._write()  # and cleans up
        assert [entry.job for entry in store.audit_log(9)] == ["lately"]


def test_without_a_store_the_newest_lines_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclwatch_server.store.no_store.NOTED_MAX", 3)
    store = NoStore()
    trail = AuditTrail(store)
    entries = [trail.note("alice", Act.STACKS, str(number), "\x1b[2J") for number in range(5)]
    assert store.audit_log(2) == [entries[4], entries[3]]
    assert store.audit_log(9, before=entries[3].id) == [entries[2]]
    assert store.audit_log(9, job="3") == [entries[3]]
    assert entries[0].detail == "\\x1b[2J"


@pytest.mark.parametrize(
    ("wall_days", "ran_days", "expected_days"),
    [
        (10.0, 0.0, 10.0),  # as the store had it
        (400.0, 0.0, 10.0),  # a clock that is ahead counts for nothing at once
        (400.0, 1.0, 34.0),  # and 24 times as fast as a server has run
        (33.0, 1.0, 33.0),  # never beyond the machine's own
        (3.0, 1.0, 3.0),  # which may have been put back
    ],
)
def test_the_clock_of_a_store_goes_on_no_faster_than_24_times_as_fast_as_servers_run(
    store_url: str, wall_days: float, ran_days: float, expected_days: float
) -> None:
    with closing(Store(store_url)):
        execute(store_url, f"UPDATE clock SET trusted_at = {10 * DAY_S}")
        engine = database.connect(store_url)
        with engine.begin() as connection:
            assert retention.advance(connection, wall_days * DAY_S, ran_days * DAY_S) == expected_days * DAY_S
            assert retention.trusted_now(connection, 1e6 * DAY_S) == expected_days * DAY_S
        engine.dispose()


def test_runs_that_are_shorter_than_a_look_for_what_is_old_count_too(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.time() + 2 * DAY_S
    with closing(Store(store_url)):
        pass
    monkeypatch.setattr("ncclwatch_server.store.incident_store.time.time", lambda: later)
    store = Store(store_url)
    with store:
        deadline = time.monotonic() + 30
        while not store._house_at:  # its thread looks once at the start, and not again for an hour
            assert time.monotonic() < deadline
            time.sleep(0.002)
        store._clocked_at -= 3600.0  # it has run for an hour
    engine = database.connect(store_url)
    with engine.begin() as connection:
        known = retention.trusted_now(connection, later)
    engine.dispose()
    assert DAY_S - 60 < known - (later - 2 * DAY_S) < DAY_S + 60
