"""Whichever system call fails below the store: what was there stays, the error is told, the next try succeeds."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from ncclwatch.contract.errors import ConfigError
from ncclwatch_server.notify.records import Records
from ncclwatch_server.notify.stages import Stage, Told
from ncclwatch_server.store import upgrading
from ncclwatch_server.store.incident_store import Store
from tests.unit.server.incidents.test_texts import INCIDENT
from tests.unit.server.store.failing_calls import KINDS, failing
from tests.unit.server.store.test_upgrading import BEFORE_VERSIONS, version

CALLS_MAX = 5000
TOLD = Told(stage=Stage.FIRING, count=1, digest="d", urgency=1)


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def copy(source: Path, target: Path) -> Path:
    """Copy a database with what belongs to it, over what is there."""
    for end in ("", "-wal", "-shm"):
        target.with_name(target.name + end).unlink(missing_ok=True)
        if (found := source.with_name(source.name + end)).exists():
            shutil.copy(found, target.with_name(target.name + end))
    return target


def check(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def each_failure(kind: str, attempt: Callable[[int], None]) -> int:
    """Let the first call of this kind fail, the second, and so on, until there is none more. Returns how many."""
    for number in range(1, CALLS_MAX):
        with failing(kind, number) as count:
            attempt(number)
        if count.calls < number:
            return number - 1
    raise AssertionError("there is always one more call")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of this version with one incident."""
    path = tmp_path_factory.mktemp("made") / "incidents.db"
    with Store(url_of(path)) as store:
        store.put(INCIDENT)
    return path


@pytest.fixture(scope="module")
def old(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one of before versions, with the same incident."""
    path = tmp_path_factory.mktemp("old") / "incidents.db"
    names = "id job name instance attempt world_size state severity cause opened_at closed_at body".split()
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(made)) as newer:
        for statement in BEFORE_VERSIONS.values():
            connection.execute(statement)
        rows = newer.execute(f"SELECT {', '.join(names)} FROM incidents").fetchall()
        connection.executemany(f"INSERT INTO incidents VALUES ({', '.join('?' * len(names))})", rows)
        connection.commit()
    return path


def known(path: Path) -> set[str]:
    with closing(Store(url_of(path))) as store:
        assert store.health().working, store.health().problem
        return {incident.id for incident in store.load()}


def opened(path: Path) -> None:
    """Open a store, which may fail; then that is told, or it waits for a disk that is full."""
    try:
        store = Store(url_of(path))
    except ConfigError as error:
        assert "cannot open the incident store sqlite:////" in str(error)
        assert "name another with --store" in str(error)
    else:
        store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_opening_a_store_that_is_there(kind: str, made: Path, tmp_path: Path) -> None:
    path = copy(made, tmp_path / "incidents.db")
    each_failure(kind, lambda _: opened(path))
    check(path)
    assert known(path) == {INCIDENT.id}


@pytest.mark.parametrize("kind", KINDS)
def test_upgrading_an_older_store(kind: str, old: Path, tmp_path: Path) -> None:
    def upgrade(number: int) -> None:
        opened(copy(old, tmp_path / f"{number}.db"))

    calls = each_failure(kind, upgrade)
    for number in range(1, calls + 2):
        path = tmp_path / f"{number}.db"
        check(path)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT id FROM incidents").fetchall() == [(INCIDENT.id,)]
        assert known(path) == {INCIDENT.id}
        assert version(url_of(path)) == upgrading.SCHEMA


@pytest.mark.parametrize("kind", KINDS)
def test_writing_an_incident(kind: str, made: Path, tmp_path: Path) -> None:
    def write(number: int) -> None:
        path = copy(made, tmp_path / f"{number}.db")
        with suppress(ConfigError):
            store = Store(url_of(path))
            store.put(replace(INCIDENT, id="new"))
            store._write()
            unfinished.append((path, store))

    unfinished: list[tuple[Path, Store]] = []
    each_failure(kind, write)
    assert unfinished
    for path, store in unfinished:
        with closing(store):
            health = store.health()
            assert not (health.working and health.waiting)  # what is not written is told
            store._write()
            assert (store.health().problem, store.health().waiting) == ("", 0)
        check(path)
        assert known(path) == {INCIDENT.id, "new"}


@pytest.mark.parametrize("kind", KINDS)
def test_recording_what_was_told(kind: str, made: Path, tmp_path: Path) -> None:
    def write(number: int) -> None:
        path = copy(made, tmp_path / f"{number}.db")
        with suppress(ConfigError):
            records = Records(url_of(path))
            records.note("mail", INCIDENT.id, TOLD)
            records._write()
            unfinished.append((path, records))

    unfinished: list[tuple[Path, Records]] = []
    each_failure(kind, write)
    assert unfinished
    for path, records in unfinished:
        records._write()
        assert not records._failing
        records._engine.dispose()  # type: ignore[union-attr]
        check(path)
        again = Records(url_of(path))
        assert again.told("mail", INCIDENT.id) == TOLD
        again._engine.dispose()  # type: ignore[union-attr]


@pytest.fixture
def short_of_memory() -> Iterator[dict[str, int]]:
    """Count statements of any database; the one with this number fails for want of memory."""
    state = {"number": 0, "at": 0}

    def before(*_: object) -> None:
        state["number"] += 1
        if state["number"] == state["at"]:
            raise MemoryError

    event.listen(Engine, "before_cursor_execute", before)
    yield state
    event.remove(Engine, "before_cursor_execute", before)


def test_writing_an_incident_without_memory(made: Path, tmp_path: Path, short_of_memory: dict[str, int]) -> None:
    for at in range(1, CALLS_MAX):
        path = copy(made, tmp_path / f"{at}.db")
        with closing(Store(url_of(path))) as store:
            store.put(replace(INCIDENT, id="new"))
            short_of_memory.update(number=0, at=at)
            store._write()
            failed = short_of_memory["number"] >= at
            assert store.health().working != failed
            short_of_memory["at"] = 0
            store._write()
            assert (store.health().working, store.health().waiting) == (True, 0)
        check(path)
        assert known(path) == {INCIDENT.id, "new"}
        if not failed:
            return
    raise AssertionError("there is always one more statement")
