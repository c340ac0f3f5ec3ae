"""Where do incidents, and what jobs have taught, outlive the server? In SQLite, or any database SQLAlchemy speaks to.

The event loop never waits for it: what changed waits in a bounded queue, a thread of its own writes
it. A store that fails is told once and tried again; judging goes on without it.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec
from sqlalchemy import (
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    insert,
    select,
)
from sqlalchemy.engine import Engine, Row, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from ncclwatch.contract.errors import ConfigError
from ncclwatch_server import settings
from ncclwatch_server.habits import Lesson
from ncclwatch_server.incidents import Incident, JobKey
from ncclwatch_server.pagination import Wanted
from ncclwatch_server.report import IncidentReport, report_incident, revive

log = logging.getLogger("ncclwatch.server")

RETRY_S = 5.0

_metadata = MetaData()
_incidents = Table(
    "incidents",
    _metadata,
    Column("id", String(40), primary_key=True),
    Column("job", String(255), nullable=False),
    Column("name", String(255), nullable=False),
    Column("instance", String(1024), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("cause", String(64), nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("closed_at", Float),
    Column("body", Text, nullable=False),  # the JSON of DESIGN.md section 5
    Index("incidents_by_state", "state", "opened_at"),
    Index("incidents_by_job", "job", "opened_at"),
)

_lessons = Table(
    "lessons",
    _metadata,
    Column("job", String(255), primary_key=True),  # the name that its ranks report
    Column("kind", String(255), primary_key=True),  # the class of waits, for people and as a key
    Column("learned_at", Float, nullable=False, index=True),
    Column("body", Text, nullable=False),  # the JSON of a `Lesson`
)
LESSONS_MAX = 8192  # kept; the oldest go first


class Store:
    """A database of incidents and lessons, and the thread that writes it."""

    def __init__(self, url: str) -> None:
        """Open the database. Raises `ConfigError` if that cannot be done."""
        self.failures = 0
        self.dropped = 0
        self._url = url
        self._failing = False
        self._engine = _open(url)
        self._pending: dict[str, Incident] = {}
        self._learned: dict[tuple[str, str], _Learned] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ncclwatch-store", daemon=True)

    def __enter__(self) -> "Store":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=1.5)
        self._engine.dispose()

    def put(self, incident: Incident) -> None:
        """Keep the newest form of an incident. Never waits."""
        with self._lock:
            self._pending.pop(incident.id, None)
            if len(self._pending) >= settings.UNSTORED_MAX:
                self._pending.pop(next(iter(self._pending)))
                self.dropped += 1
            self._pending[incident.id] = incident
        self._wake.set()

    def learn(self, job: str, lesson: Lesson) -> None:
        """Keep the newest form of a lesson. Never waits."""
        learned = _Learned(job=job, lesson=lesson, at=time.time())
        with self._lock:
            if learned.key not in self._learned and len(self._learned) >= settings.UNSTORED_MAX:
                self._learned.pop(next(iter(self._learned)))
                self.dropped += 1
            self._learned[learned.key] = learned
        self._wake.set()

    def lessons(self) -> dict[str, list[Lesson]]:
        """Return what jobs have taught, by job, the oldest first. Raises as `load`."""
        # What is more than is kept is forgotten here: a server is started often enough.
        newest = select(_lessons).order_by(_lessons.c.learned_at.desc()).limit(LESSONS_MAX)
        try:
            with self._engine.begin() as connection:
                rows = list(connection.execute(newest))
                if len(rows) == LESSONS_MAX:
                    connection.execute(delete(_lessons).where(_lessons.c.learned_at < rows[-1].learned_at))
        except SQLAlchemyError as error:
            raise ConfigError(_cannot("read", self._url, error)) from error
        found: dict[str, list[Lesson]] = {}
        for row in reversed(rows):
            try:
                lesson = msgspec.json.decode(str(row.body), type=Lesson)
            except msgspec.DecodeError as error:
                log.warning("a lesson of job %s in the store cannot be read (%s); it is left alone", row.job, error)
                continue
            found.setdefault(str(row.job), []).append(lesson)
        return found

    def load(self) -> tuple[Incident, ...]:
        """Return the open incidents and the newest of the closed ones. Raises `ConfigError`."""
        newest = select(_incidents).order_by(_incidents.c.opened_at.desc())
        try:
            with self._engine.connect() as connection:
                rows = list(connection.execute(newest.where(_incidents.c.state == "open").limit(settings.OPEN_MAX)))
                rows += connection.execute(newest.where(_incidents.c.state != "open").limit(settings.CLOSED_KEPT_MAX))
        except SQLAlchemyError as error:
            raise ConfigError(_cannot("read", self._url, error)) from error
        return tuple(incident for row in rows if (incident := _revive(row)) is not None)

    def find(self, wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        """Return stored incidents that are wanted and not held, the newest first. Waits for the database: in a thread.

        Of a database that does not answer nothing is found; that it fails is told when it is written.
        """
        rows = select(_incidents).order_by(_incidents.c.opened_at.desc(), _incidents.c.id).limit(limit)
        rows = rows.where(_incidents.c.id.not_in(held))
        for column, value in (
            (_incidents.c.job, wanted.job),
            (_incidents.c.state, wanted.state.value if wanted.state is not None else None),
            (_incidents.c.severity, wanted.severity.value if wanted.severity is not None else None),
            (_incidents.c.cause, wanted.cause.value if wanted.cause is not None else None),
        ):
            if value is not None:
                rows = rows.where(column == value)
        if wanted.since is not None:
            rows = rows.where(_incidents.c.opened_at >= wanted.since)
        bounds = [wanted.until, wanted.after.until_s if wanted.after is not None else None]
        for bound in bounds:
            if bound is not None:
                rows = rows.where(_incidents.c.opened_at < bound)
        try:
            with self._engine.connect() as connection:
                found = list(connection.execute(rows))
        except SQLAlchemyError as error:
            self.failures += 1
            log.warning("%s; only what is in memory is shown", _cannot("read", self._url, error))
            return ()
        return tuple(incident for row in found if (incident := _revive(row)) is not None)

    def get(self, incident: str) -> Incident | None:
        """Return one stored incident. Waits for the database, as `find`."""
        try:
            with self._engine.connect() as connection:
                row = connection.execute(select(_incidents).where(_incidents.c.id == incident)).first()
        except SQLAlchemyError as error:
            self.failures += 1
            log.warning("%s; only what is in memory is shown", _cannot("read", self._url, error))
            return None
        return _revive(row) if row is not None else None

    def _run(self) -> None:
        while True:
            self._wake.wait(RETRY_S if self._failing else None)
            self._wake.clear()
            self._write()
            if self._stopping.is_set():
                return
            if self._failing:
                self._stopping.wait(RETRY_S)

    def _write(self) -> None:
        with self._lock:
            batch, self._pending = self._pending, {}
            learned, self._learned = self._learned, {}
        if not batch and not learned:
            return
        try:
            with self._engine.begin() as connection:
                if batch:
                    connection.execute(delete(_incidents).where(_incidents.c.id.in_(tuple(batch))))
                    connection.execute(insert(_incidents), [_row(incident) for incident in batch.values()])
                for each in learned.values():
                    connection.execute(delete(_lessons).where(_lessons.c.job == each.job, _lessons.c.kind == each.kind))
                    connection.execute(insert(_lessons), each.row())
        except SQLAlchemyError as error:
            self.failures += 1
            if not self._failing:
                log.error("%s; judging goes on, and it is tried again", _cannot("write", self._url, error))
            self._failing = True
            with self._lock:  # what came meanwhile is newer
                self._pending = {**batch, **self._pending}
                self._learned = {**learned, **self._learned}
            return
        if self._failing:
            log.info("the incident store %s can be written again", _shown(self._url))
        self._failing = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """A lesson that waits to be written."""

    job: str
    lesson: Lesson
    at: float

    @property
    def kind(self) -> str:
        """The class of waits, in words."""
        kind = self.lesson.kind
        return " / ".join((kind.phase.value, kind.op, str(kind.size), kind.name))[:255]

    @property
    def key(self) -> tuple[str, str]:
        """What there is one row of."""
        return (self.job, self.kind)

    def row(self) -> dict[str, str | float]:
        """Return it as the table has it."""
        body = msgspec.json.encode(self.lesson).decode()
        return {"job": self.job, "kind": self.kind, "learned_at": self.at, "body": body}


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """Open a store for as long as the context lasts. Raises `ConfigError`."""
    with Store(url) as store:
        yield store


def _open(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        engine = create_engine(parsed)
        if parsed.get_backend_name() == "sqlite":
            event.listen(engine, "connect", _prepare_sqlite)
        _metadata.create_all(engine)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the store {_shown(url)} needs the package {error.name}; install it, or name another with --store"
        ) from error
    except (SQLAlchemyError, ArgumentError, OSError) as error:
        raise ConfigError(_cannot("open", url, error)) from error
    return engine


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA busy_timeout=1000")
    cursor.close()


def _cannot(verb: str, url: str, error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return f"cannot {verb} the incident store {_shown(url)} ({cause}); name another with --store"


def _shown(url: str) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


def _row(incident: Incident) -> dict[str, str | int | float | None]:
    return {
        "id": incident.id,
        "job": incident.job[:255],
        "name": incident.key.name,
        "instance": incident.key.instance,
        "attempt": incident.key.attempt,
        "world_size": incident.world_size,
        "state": incident.state.value,
        "severity": incident.verdict.severity.value,
        "cause": incident.verdict.cause.value,
        "opened_at": incident.opened_at,
        "closed_at": incident.closed_at,
        "body": msgspec.json.encode(report_incident(incident)).decode(),
    }


def _revive(row: "Row[tuple[object, ...]]") -> Incident | None:
    """Return the incident of a row, None if another version wrote what this one cannot read."""
    try:
        report = msgspec.json.decode(str(row.body), type=IncidentReport)
    except msgspec.DecodeError as error:
        log.warning("incident %s in the store cannot be read (%s); it is left alone", row.id, error)
        return None
    key = JobKey(name=str(row.name), instance=str(row.instance), attempt=int(row.attempt))
    return revive(report, key, int(row.world_size))


class NoStore:
    """Keeps nothing: what the incident book remembers is all there is."""

    failures = 0
    dropped = 0

    def put(self, incident: Incident) -> None:
        """Do nothing."""

    def learn(self, job: str, lesson: Lesson) -> None:
        """Do nothing."""

    def find(self, wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        """Find nothing."""
        return ()

    def get(self, incident: str) -> Incident | None:
        """Find nothing."""
        return None
