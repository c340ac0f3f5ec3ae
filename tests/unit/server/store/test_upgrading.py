"""A store of an older version becomes one of this version, and a newer one is left alone."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from ncclwatch.contract.errors import ConfigError
from ncclwatch_server.state.waits.history import Lesson
from ncclwatch_server.store import database, tables, upgrading
from ncclwatch_server.store.incident_store import Store
from tests.unit.server.incidents.test_texts import INCIDENT
from tests.unit.server.store.test_incident_store import STEP, execute

# As stores were before they had a version: made by SQLAlchemy, byte by byte what SQLite says of one from then.
BEFORE_VERSIONS = {
    "incidents": """CREATE TABLE incidents (
        id VARCHAR(40) NOT NULL, job VARCHAR(255) NOT NULL, name VARCHAR(255) NOT NULL,
        instance VARCHAR(1024) NOT NULL, attempt INTEGER NOT NULL, world_size INTEGER NOT NULL,
        state VARCHAR(16) NOT NULL, severity VARCHAR(16) NOT NULL, cause VARCHAR(64) NOT NULL,
        opened_at FLOAT NOT NULL, closed_at FLOAT, body TEXT NOT NULL, PRIMARY KEY (id))""",
    "by_state": "CREATE INDEX incidents_by_state ON incidents (state, opened_at)",
    "by_job": "CREATE INDEX incidents_by_job ON incidents (job, opened_at)",
    "lessons": """CREATE TABLE lessons (job VARCHAR(255) NOT NULL, kind VARCHAR(255) NOT NULL,
        learned_at FLOAT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (job, kind))""",
    "learned": "CREATE INDEX ix_lessons_learned_at ON lessons (learned_at)",
}
FIRST = ("incidents", "by_state", "by_job")  # still earlier there were no lessons


def version(url: str) -> str:
    engine = database.connect(url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    engine.dispose()
    return str(found)


@pytest.mark.parametrize("made_of", [FIRST, tuple(BEFORE_VERSIONS)], ids=["without lessons", "with lessons"])
def test_a_store_of_before_versions_is_upgraded_with_all_that_is_in_it(
    store_url: str, made_of: tuple[str, ...]
) -> None:
    with Store(store_url) as store:
        store.put(INCIDENT)
        store.learn("job", Lesson(kind=STEP).with_wait(3.0, 0.0))
    engine = database.connect(store_url)
    with engine.connect() as connection:
        incidents = [
            {name: value for name, value in row._mapping.items() if name in BEFORE_VERSIONS["incidents"]}
            for row in connection.execute(tables.incidents.select())
        ]
        lessons = [dict(row._mapping) for row in connection.execute(tables.lessons.select())]
        connection.rollback()
    made = inspect(engine).get_table_names()
    with engine.begin() as connection:
        for table in made:
            connection.exec_driver_sql(f"DROP TABLE {table}")
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("DROP FUNCTION ncclwatch_audit_is_kept()")
        for name in made_of:
            connection.exec_driver_sql(BEFORE_VERSIONS[name])
        connection.execute(tables.incidents.insert(), incidents)
        if "lessons" in made_of:
            connection.execute(tables.lessons.insert(), lessons)
    engine.dispose()
    for _ in range(2):
        with closing(Store(store_url)) as store:
            assert [incident.id for incident in store.load()] == [INCIDENT.id]
            assert list(store.lessons()) == (["job"] if "lessons" in made_of else [])
        assert version(store_url) == upgrading.SCHEMA


def test_the_newest_step_leaves_what_the_server_works_with(store_url: str) -> None:
    with closing(Store(store_url)):
        engine = database.connect(store_url)
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
        engine.dispose()


def test_the_newest_step_is_the_one_that_the_server_knows() -> None:
    migrations = Path(upgrading.__file__).with_name("migrations")
    assert ScriptDirectory(str(migrations)).get_heads() == [upgrading.SCHEMA]


def test_a_newer_store_is_left_alone_and_its_reader_told_what_to_do(store_url: str) -> None:
    with Store(store_url) as store:
        store.put(INCIDENT)
    execute(store_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match=r"written by a newer ncclwatch-server \(its schema is 9999.*--store") as told:
        Store(store_url)
    assert "watch:" not in str(told.value)
    assert version(store_url) == "9999"


def test_an_upgrade_that_fails_leaves_the_store_as_it_was(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = database.connect(store_url)
    with engine.begin() as connection:
        for statement in BEFORE_VERSIONS.values():
            connection.exec_driver_sql(statement)
        # In the way of the second step, after the first has been done.
        connection.exec_driver_sql("CREATE TABLE audit (other INTEGER)")
    with pytest.raises(ConfigError, match="cannot open the incident store"):
        Store(store_url)
    assert set(inspect(engine).get_table_names()) == {"incidents", "lessons", "audit"}
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE audit")
    engine.dispose()
    with closing(Store(store_url)):
        assert version(store_url) == upgrading.SCHEMA


def test_servers_that_start_at_once_upgrade_one_after_the_other(store_url: str) -> None:
    failures: list[Exception] = []

    def start(number: int) -> None:
        try:
            with Store(store_url) as store:
                store.put(replace(INCIDENT, id=str(number)))
        except ConfigError as error:
            failures.append(error)

    threads = [Thread(target=start, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with closing(Store(store_url)) as store:
        assert {incident.id for incident in store.load()} == {"0", "1", "2"}
