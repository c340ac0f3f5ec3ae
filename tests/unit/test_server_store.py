"""Incidents outlive the server, and a store that fails stops nothing."""

import logging
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.model import WaitClass
from ncclwatch.contract.phases import Phase
from ncclwatch_server import settings
from ncclwatch_server.habits import Lesson
from ncclwatch_server.incidents import IncidentState
from ncclwatch_server.store import Store
from tests.unit.test_server_texts import INCIDENT


def test_what_was_put_is_there_afterwards(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deep' / 'incidents.db'}"
    with Store(url) as store:
        store.put(INCIDENT)
        store.put(replace(INCIDENT, id="other", state=IncidentState.ENDED, closed_at=1_800_000_009.0))
    with Store(url) as store:
        loaded = {incident.id: incident for incident in store.load()}
        assert loaded == {
            "abc123": replace(INCIDENT, verdict=replace(INCIDENT.verdict, onset_s=INCIDENT.onset_to_open_s)),
            "other": replace(loaded["abc123"], id="other", state=IncidentState.ENDED, closed_at=1_800_000_009.0),
        }


def test_the_newest_form_of_an_incident_is_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
    for state in IncidentState:
        with Store(url) as store:
            store.put(INCIDENT)
            store.put(replace(INCIDENT, state=state))
    with Store(url) as store:
        assert [incident.state for incident in store.load()] == [IncidentState.ENDED]


def test_a_store_that_fails_is_told_once_and_catches_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "incidents.db"
    store = Store(f"sqlite:///{path}")
    blocker = sqlite3.connect(path)
    blocker.execute("DROP TABLE incidents")
    with caplog.at_level(logging.INFO):
        for number in range(3):
            store.put(replace(INCIDENT, id=str(number)))
            store._write()
        assert store.failures == 3
        assert len([r for r in caplog.records if "judging goes on" in r.message]) == 1
        Store(f"sqlite:///{path}")  # makes the table again
        store._write()
    assert "can be written again" in caplog.text
    assert {incident.id for incident in store.load()} == {"0", "1", "2"}
    blocker.close()


def test_what_waits_for_a_failing_store_is_bounded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "UNSTORED_MAX", 2)
    store = Store(f"sqlite:///{tmp_path / 'incidents.db'}")
    for number in range(5):
        store.put(replace(INCIDENT, id=str(number)))
    assert store.dropped == 3
    store._write()
    assert {incident.id for incident in store.load()} == {"3", "4"}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite:////proc/none/incidents.db", "cannot open the incident store"),
        ("nonsense", "cannot open the incident store"),
        ("nonsense://x", "cannot open the incident store"),
        ("postgresql+asyncpg://u:secret@h/db", "needs the package"),
    ],
)
def test_a_store_that_cannot_be_opened_is_a_sentence(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        Store(url)
    assert "--store" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_file_that_is_no_database_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "incidents.db"
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        Store(f"sqlite:///{path}")


def test_a_row_of_another_version_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "incidents.db"
    with Store(f"sqlite:///{path}") as store:
        store.put(INCIDENT)
        store.put(replace(INCIDENT, id="other"))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE incidents SET body = '{}' WHERE id = 'other'")
    database.close()
    with Store(f"sqlite:///{path}") as store:
        assert [incident.id for incident in store.load()] == ["abc123"]
    assert "left alone" in caplog.text


STEP, SAVE = (WaitClass(phase=phase, op="barrier", size=8) for phase in (Phase.STEP, Phase.CHECKPOINT))
NAMED = WaitClass(phase=Phase.OTHER, op="", size=1, name="roll / out")


def test_lessons_are_kept_by_job_and_class_in_their_newest_form(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
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


def test_only_the_newest_lessons_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'incidents.db'}"
    with Store(url) as store:
        for name in "abc":
            store.learn(name, Lesson(kind=STEP))
    monkeypatch.setattr("ncclwatch_server.store.LESSONS_MAX", 2)
    with Store(url) as store:
        assert set(store.lessons()) == {"b", "c"}
    monkeypatch.undo()
    with Store(url) as store:
        assert set(store.lessons()) == {"b", "c"}


def test_a_lesson_of_another_version_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "incidents.db"
    with Store(f"sqlite:///{path}") as store:
        store.learn("a", Lesson(kind=STEP))
        store.learn("b", Lesson(kind=STEP))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE lessons SET body = '{}' WHERE job = 'a'")
    connection.close()
    with Store(f"sqlite:///{path}") as store:
        assert set(store.lessons()) == {"b"}
    assert "a lesson of job a" in caplog.text


def test_lessons_wait_for_a_store_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "incidents.db"
    store = Store(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE lessons")
    connection.close()
    store.learn("a", Lesson(kind=STEP))
    store._write()
    assert store.failures == 1
    Store(f"sqlite:///{path}")  # makes the table again
    store._write()
    assert set(store.lessons()) == {"a"}
