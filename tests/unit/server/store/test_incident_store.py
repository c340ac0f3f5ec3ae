"""Incidents outlive the server, and a store that fails stops nothing."""

import logging
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.model.job import WaitClass
from ncclwatch.contract.model.phases import Phase
from ncclwatch_server import limits
from ncclwatch_server.incidents.book import IncidentState
from ncclwatch_server.state.waits.history import Lesson
from ncclwatch_server.store import database
from ncclwatch_server.store.incident_store import Store
from tests.unit.server.incidents.test_texts import INCIDENT


def execute(url: str, *statements: str) -> None:
    """Do something to a store behind its back."""
    engine = database.connect(url)
    try:
        with engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


def test_the_directory_of_a_store_is_made_and_nobody_else_may_look_into_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "incidents.db"
    with Store(f"sqlite:///{path}") as store:
        store.put(INCIDENT)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_put_is_there_afterwards(store_url: str) -> None:
    url = store_url
    with Store(url) as store:
        store.put(INCIDENT)
        store.put(replace(INCIDENT, id="other", state=IncidentState.ENDED, closed_at=1_800_000_009.0))
    with Store(url) as store:
        loaded = {incident.id: incident for incident in store.load()}
        assert loaded == {
            "abc123": replace(INCIDENT, verdict=replace(INCIDENT.verdict, onset_s=INCIDENT.onset_to_open_s)),
            "other": replace(loaded["abc123"], id="other", state=IncidentState.ENDED, closed_at=1_800_000_009.0),
        }


def test_the_newest_form_of_an_incident_is_kept(store_url: str) -> None:
    url = store_url
    for state in IncidentState:
        with Store(url) as store:
            store.put(INCIDENT)
            store.put(replace(INCIDENT, state=state))
    with Store(url) as store:
        assert [incident.state for incident in store.load()] == [IncidentState.ENDED]


def test_an_earlier_hang_at_the_same_place_is_kept(store_url: str) -> None:
    """The server had a thousand others since, and finds its id free."""
    ended = replace(INCIDENT, state=IncidentState.ENDED, closed_at=INCIDENT.opened_at + 60.0)
    months = [replace(ended, opened_at=INCIDENT.opened_at + month * 2e6) for month in range(3)]
    for each in months:
        with Store(store_url) as store:
            store.put(replace(each, state=IncidentState.OPEN, closed_at=None))
            store.put(each)
    with Store(store_url) as store:
        found = {incident.id: incident.opened_at for incident in store.load()}
    first, second, last = (each.opened_at for each in months)
    assert found == {"abc123": last, f"abc123-{int(first)}": first, f"abc123-{int(second)}": second}


def test_a_store_that_fails_is_told_once_and_catches_up(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Store(store_url)) as store:
        execute(store_url, "ALTER TABLE incidents RENAME TO elsewhere")
        with caplog.at_level(logging.INFO):
            for number in range(3):
                store.put(replace(INCIDENT, id=str(number)))
                store._write()
            health = store.health()
            assert (health.failures, health.waiting, health.working) == (3, 3, False)
            assert "incidents" in health.problem
            assert len([r for r in caplog.records if "judging goes on" in r.message]) == 1
            execute(store_url, "ALTER TABLE elsewhere RENAME TO incidents")
            store._write()
        assert "can be written again" in caplog.text
        assert "3 incidents, lessons" in caplog.text
        assert {incident.id for incident in store.load()} == {"0", "1", "2"}
        health = store.health()
        assert (health.waiting, health.working, health.problem, health.behind_s) == (0, True, "", 0.0)


def test_what_waits_for_a_failing_store_is_bounded_and_counted(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNSTORED_MAX", 2)
    with closing(Store(store_url)) as store:
        execute(store_url, "ALTER TABLE incidents RENAME TO elsewhere")
        for number in range(5):
            store.put(replace(INCIDENT, id=str(number)))
        store._write()
        store.put(replace(INCIDENT, id="5"))
        assert store.health().not_stored == 4
        assert store.health().waiting == 2
        execute(store_url, "ALTER TABLE elsewhere RENAME TO incidents")
        store._write()
        assert {incident.id for incident in store.load()} == {"4", "5"}


def test_what_comes_during_a_write_that_fails_counts_for_the_bound(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNSTORED_MAX", 2)
    with closing(Store(store_url)) as store:

        def breaks(*_: object) -> None:
            for name in ("3", "4"):
                store.put(replace(INCIDENT, id=name))
            raise OperationalError("INSERT", {}, Exception("the line broke"))

        for name in ("1", "2"):
            store.put(replace(INCIDENT, id=name))
        with monkeypatch.context() as broken:
            broken.setattr("ncclwatch_server.store.incident_store.write_all", breaks)
            store._write()
        assert (store.health().waiting, store.health().not_stored) == (2, 2)
        store._write()
        assert {incident.id for incident in store.load()} == {"3", "4"}


def test_what_comes_during_a_write_that_fails_is_newer_than_what_was_written(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store(store_url)) as store:

        def breaks(*_: object) -> None:
            store.put(replace(INCIDENT, state=IncidentState.RESOLVED))
            raise OperationalError("INSERT", {}, Exception("the line broke"))

        store.put(INCIDENT)
        with monkeypatch.context() as broken:
            broken.setattr("ncclwatch_server.store.incident_store.write_all", breaks)
            store._write()
        store._write()
        assert [incident.state for incident in store.load()] == [IncidentState.RESOLVED]


def test_a_row_that_no_database_takes_does_not_keep_back_the_others(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Store(store_url)) as store:
        hostile = replace(INCIDENT, id="hostile", key=replace(INCIDENT.key, instance="a\x00b\ud800"))
        impossible = replace(INCIDENT, id="impossible" * 9, world_size=2**70)
        for incident in (hostile, impossible, INCIDENT):
            store.put(incident)
        store._write()
        store._write()
        assert {incident.id for incident in store.load()} == {"hostile", "abc123"}
        assert store.health().not_stored == 1
        assert store.health().waiting == 0
        assert "given up" in caplog.text


def test_a_mistake_in_our_own_writing_does_not_end_the_thread(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Store(store_url)) as store:
        with monkeypatch.context() as broken:
            broken.setattr("ncclwatch_server.store.incident_store.write_all", lambda *_: 1 // 0)
            store.put(INCIDENT)
            store._write()
            assert not store.health().working
            assert "nobody has foreseen" in caplog.text
        store._write()
        assert [incident.id for incident in store.load()] == ["abc123"]


def test_what_is_left_when_the_server_ends_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
    with Store(url) as store:
        execute(url, "ALTER TABLE incidents RENAME TO elsewhere")
        store.put(INCIDENT)
    assert "1 incidents, lessons and lines of the audit log are not in" in caplog.text


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite:////proc/none/incidents.db", "cannot open the incident store"),
        ("nonsense", "cannot open the incident store"),
        ("nonsense://x", "of a kind that ncclwatch does not know"),
        ("mysql://u:secret@h/db", "of a kind that ncclwatch does not know"),
        ("postgresql://u:secret@127.0.0.1:1/db?connect_timeout=nonsense", "cannot open the incident store"),
    ],
)
def test_a_store_that_cannot_be_opened_is_a_sentence(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        Store(url)
    assert "--store" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg"])
def test_postgresql_needs_one_package_whatever_driver_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"needs the package psycopg: pip install 'ncclwatch\[postgres\]'") as raised:
        Store(f"{scheme}://u:secret@h/db")
    assert "secret" not in str(raised.value)


def test_a_file_that_is_no_database_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "incidents.db"
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        Store(f"sqlite:///{path}")


def test_a_row_of_another_version_is_left_alone(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Store(store_url) as store:
        store.put(INCIDENT)
        store.put(replace(INCIDENT, id="other"))
    execute(store_url, "UPDATE incidents SET body = '{}' WHERE id = 'other'")
    with Store(store_url) as store:
        assert [incident.id for incident in store.load()] == ["abc123"]
    assert "left alone" in caplog.text


STEP, SAVE = (WaitClass(phase=phase, op="barrier", size=8) for phase in (Phase.STEP, Phase.CHECKPOINT))
NAMED = WaitClass(phase=Phase.OTHER, op="", size=1, name="roll / out")


def test_lessons_are_kept_by_job_and_class_in_their_newest_form(store_url: str) -> None:
    url = store_url
    first = Lesson(kind=SAVE).with_wait(40.0, 2.0)
    with Store(url) as store:
        store.learn("a", first)
        store.learn("b", first)
        store.learn("a", Lesson(kind=NAMED).with_wait(3.0, 0.0))
    with Store(url) as store:
        store.learn("a", first.with_wait(50.0, 1.0))
    with Store(url) as store:
        found = store.lessons()
    assert {lesson.kind: lesson for lesson in found["a"]} == {
        SAVE: first.with_wait(50.0, 1.0),
        NAMED: Lesson(kind=NAMED).with_wait(3.0, 0.0),
    }
    assert found["b"] == [first]


def test_only_the_newest_lessons_are_kept(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = store_url
    with Store(url) as store:
        for name in "abc":
            store.learn(name, Lesson(kind=STEP))
    monkeypatch.setattr("ncclwatch_server.store.recalling.LESSONS_MAX", 2)
    with Store(url) as store:
        assert set(store.lessons()) == {"b", "c"}
    monkeypatch.undo()
    with Store(url) as store:
        assert set(store.lessons()) == {"b", "c"}


def test_a_lesson_of_another_version_is_left_alone(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Store(store_url) as store:
        store.learn("a", Lesson(kind=STEP))
        store.learn("b", Lesson(kind=STEP))
    execute(store_url, "UPDATE lessons SET body = '{}' WHERE job = 'a'")
    with Store(store_url) as store:
        assert set(store.lessons()) == {"b"}
    assert "a lesson of job a" in caplog.text


def test_lessons_wait_for_a_store_that_fails(store_url: str) -> None:
    with closing(Store(store_url)) as store:
        execute(store_url, "ALTER TABLE lessons RENAME TO elsewhere")
        store.learn("a", Lesson(kind=STEP))
        store._write()
        assert store.failures == 1
        execute(store_url, "ALTER TABLE elsewhere RENAME TO lessons")
        store._write()
        assert set(store.lessons()) == {"a"}
