"""Keeps incidents, and what jobs have taught, beyond the life of the server, in SQLite or in PostgreSQL.

The event loop never waits for it: what changed waits in bounded queues, a thread of its own writes it. A store that
fails is told of once and tried again; judging goes on without it, and what waited is written when it returns. Where
the file of SQLite is deleted or replaced under the server, a new one is begun, with what is in memory. What is kept
where, and for how long, is in `tables` and `retention`.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from types import TracebackType
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from ncclwatch.contract.errors import ConfigError, NcclwatchError
from ncclwatch.contract.machine.liveness import LoopLife, keep_thread
from ncclwatch_server import limits, settings
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.incidents.losses import Loss
from ncclwatch_server.incidents.pagination import Wanted
from ncclwatch_server.security.audit import AuditEntry
from ncclwatch_server.state.waits.history import Lesson
from ncclwatch_server.store import database, queries, records, retention, tables, upgrading
from ncclwatch_server.store.batch import Batch, shorten, take_oldest, write_all
from ncclwatch_server.store.database import cannot
from ncclwatch_server.store.health import StoreHealth
from ncclwatch_server.store.recalling import read_incidents, read_lessons
from ncclwatch_server.store.records import Learned
from ncclwatch_server.store.retention import Removed

log = logging.getLogger("ncclwatch.server")

RETRY_S = 5.0
ROUND_S = 5.0  # the writer goes round at least so often
HOUSE_S = 3600.0  # between two looks for what is no longer kept

SLOW_S = 30.0  # a store that has not answered for so long fails
ENDING_S = 5.0  # a server that ends waits so long for what is not written yet
BUSY_S = 5.0  # an operator who wants something deleted waits so long for the writer

# What will never be written, however often it is tried: a number too big, a key that is there, what is no JSON.
_NEVER = (DataError, IntegrityError, OverflowError, ValueError, TypeError)

_Key = TypeVar("_Key", bound=Hashable)
_Thing = TypeVar("_Thing")
_Found = TypeVar("_Found")
Known = tuple[tuple[Incident, ...], dict[str, list[Lesson]]]  # what a store knew before


class StoreFailed(NcclwatchError):
    """The store cannot be read or written now."""


class Store:
    """A database of incidents, lessons and the audit log, and the thread that writes it."""

    lasting = True

    def __init__(self, url: str, keeping: settings.Keeping | None = None, term: int = 0) -> None:
        """Open the database; `term`: see `batch.write_all`.

        Raises `ConfigError` if it cannot be opened, and waiting would not help.
        """
        self.failures = 0
        self.dropped = 0
        self.recalled: Callable[[Known], None] | None = None  # called by the thread when a store comes late
        self.lost: Callable[[], None] | None = None  # called by it when a new store wants what is in memory
        self.begun_anew = 0
        self._url = url
        self._term = term
        self._keeping = keeping or settings.Keeping()
        self._problem = ""  # why it fails now
        self._failing_since = 0.0
        self._waiting_since = 0.0
        self._slow_told = False
        self._pending = Batch()
        self._writing = Batch()  # what the thread has taken, until the database has it
        self._lock = threading.Lock()  # of what waits; held for moments
        self._using = threading.Lock()  # of the database; held while it is written
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._house_at = 0.0
        self._clocked_at = time.monotonic()  # until then this run is in the store's clock
        self._ahead_told = False
        self.life = LoopLife("store", age_s_max=limits.PART_STILL_S)
        self._thread = threading.Thread(target=self._live, name="ncclwatch-store", daemon=True)
        self._engine = database.connect(url)
        self._file = database.StoreFile(url)
        self._file.note()
        self._lost = False
        self._open = False
        try:
            upgrading.upgrade(self._engine)
            self._open = True
        except ConfigError:
            self.close()
            raise
        except SQLAlchemyError as error:
            if not database.is_passing(error):
                self.close()
                raise ConfigError(cannot("open", url, error)) from error
            self._failed("open", error)

    def __enter__(self) -> "Store":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=ENDING_S)
        if left := len(self._pending) + len(self._writing):
            log.error("%d incidents, lessons and lines of the audit log are not in %s", left, database.shown(self._url))
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def put(self, incident: Incident) -> None:
        """Keep the newest form of an incident. Never waits."""
        with self._lock:
            self._pending.incidents.pop(incident.id, None)
            self._keep(self._pending.incidents, incident.id, incident)
        self._wake.set()

    def learn(self, job: str, lesson: Lesson) -> None:
        """Keep the newest form of a lesson. Never waits."""
        learned = Learned(job=job, lesson=lesson, at=time.time())
        with self._lock:
            self._keep(self._pending.learned, learned.key, learned)
        self._wake.set()

    def note(self, entry: AuditEntry) -> None:
        """Keep a line of the audit log. Never waits."""
        with self._lock:
            self._keep(self._pending.audit, entry.id, entry)
        self._wake.set()

    def health(self) -> StoreHealth:
        """Return how the store is doing. Never waits for it."""
        with self._lock:
            waiting, problem = len(self._pending) + len(self._writing), self._problem
            behind_s = self._behind_s()
            failing_s = time.monotonic() - self._failing_since if problem else 0.0
        if not problem and behind_s > SLOW_S:
            problem, failing_s = f"it has not answered for {behind_s:.0f} s", behind_s
        return StoreHealth(
            place=database.shown(self._url),
            working=not problem,
            problem=problem,
            failing_s=round(failing_s, 1),
            waiting=waiting,
            behind_s=round(behind_s, 1),
            not_stored=self.dropped,
            failures=self.failures,
            begun_anew=self.begun_anew,
        )

    def load(self) -> tuple[Incident, ...]:
        """Return the open incidents and the newest of the closed ones, none while it is away. Raises `ConfigError`."""
        return records.incidents_of(self._read(read_incidents))

    def lessons(self) -> dict[str, list[Lesson]]:
        """Return what jobs have taught, by job, the oldest first, nothing while it is away. Raises `ConfigError`."""
        return records.lessons_of(self._read(read_lessons))

    def audit_log(self, limit: int, before: str = "", job: str = "") -> list[AuditEntry]:
        """Return lines of the audit log, the newest first. Waits for the database. Raises `StoreFailed`.

        `before` is the id of the last line that is known already; `job` the one of which lines are wanted.
        """
        with self._lock:
            waiting = [e for e in self._pending.audit.values() if (not before or e.id < before) and job in ("", e.job)]
        audit = tables.audit.c
        wanted = select(tables.audit).order_by(audit.id.desc()).limit(limit)
        if before:
            wanted = wanted.where(audit.id < before)
        if job:
            wanted = wanted.where(audit.job == job)
        try:
            with self._engine.connect() as connection:
                stored = records.audit_of(connection.execute(wanted))
        except SQLAlchemyError as error:
            raise StoreFailed(cannot("read", self._url, error)) from error
        every = {entry.id: entry for entry in (*stored, *waiting)}
        return sorted(every.values(), key=lambda entry: entry.id, reverse=True)[:limit]

    def find(self, wanted: Wanted, held: frozenset[str], limit: int) -> tuple[Incident, ...]:
        """Return stored incidents that are wanted and not held, the newest first. Raises `StoreFailed`.

        Waits for the database: to be called in a thread.
        """
        return records.incidents_of(self._rows(queries.wanted_rows(wanted, held, limit)))

    def losses(self, since: float, held: frozenset[str], limit: int) -> tuple[Loss, ...]:
        """Return what counts of stored hangs that were reported since then and are not held. Raises `StoreFailed`.

        Waits for the database: to be called in a thread.
        """
        return records.losses_of(self._rows(queries.loss_rows(since, held, limit)))

    def get(self, incident: str) -> Incident | None:
        """Return one stored incident. Waits for the database. Raises `StoreFailed`."""
        found = records.incidents_of(self._rows(queries.row_of(incident)))
        return found[0] if found else None

    def _rows(self, query: queries.Query) -> list[Row[tuple[object, ...]]]:
        if not self._open:
            raise StoreFailed(f"the incident store {database.shown(self._url)} has not answered yet")
        try:
            with self._engine.connect() as connection:
                return list(connection.execute(query))
        except SQLAlchemyError as error:
            raise StoreFailed(cannot("read", self._url, error)) from error

    def delete_job(self, job: str) -> Removed:
        """Delete what is kept of a job. Waits for the database. Raises `StoreFailed`; then nothing stored has gone."""
        if not self._using.acquire(timeout=BUSY_S):
            raise StoreFailed(f"the incident store {database.shown(self._url)} is busy or does not answer; try again")
        try:
            with self._lock:  # or it would be written again
                waits = self._pending
                waits.incidents = {key: each for key, each in waits.incidents.items() if each.job != job}
                waits.learned = {key: each for key, each in waits.learned.items() if each.job != job}
            with self._engine.begin() as connection:
                removed = retention.delete_job(connection, job)
            database.forget_for_good(self._engine)
        except SQLAlchemyError as error:
            raise StoreFailed(cannot("delete from", self._url, error)) from error
        finally:
            self._using.release()
        return removed

    def _keep(self, kept: dict[_Key, _Thing], key: _Key, thing: _Thing) -> None:
        """Put something into a bounded queue, whose oldest goes if it is full. Needs the lock."""
        if key not in kept and len(kept) >= limits.UNSTORED_MAX:
            kept.pop(next(iter(kept)))
            self.dropped += 1
        kept[key] = thing
        self._waiting_since = self._waiting_since or time.monotonic()
        if not self._slow_told and not self._problem and self._behind_s() > SLOW_S:
            self._slow_told = True
            log.error("the incident store %s does not answer; judging goes on without it", database.shown(self._url))

    def _behind_s(self) -> float:
        """Return for how long the oldest of what waits has waited. Needs the lock."""
        return time.monotonic() - self._waiting_since if self._waiting_since else 0.0

    def _read(self, reading: Callable[[Connection], list[_Found]]) -> list[_Found]:
        """Return what is read, nothing while the store is away: it is read when it comes."""
        if not self._open:
            return []
        try:
            with self._using, self._engine.begin() as connection:
                return reading(connection)
        except SQLAlchemyError as error:
            if database.is_passing(error):
                self._open = False
                self._failed("read", error)
                return []
            raise ConfigError(cannot("read", self._url, error)) from error

    def _live(self) -> None:
        keep_thread(self.life, log, self._run, self._stopping)

    def _run(self) -> None:
        while True:
            house_s = max(0.0, self._house_at - time.monotonic())
            self._wake.wait(RETRY_S if self._problem else min(house_s, ROUND_S))
            self._wake.clear()
            self.life.went_round()
            ending = self._stopping.is_set()  # asked before: what came before the end is written
            self._write()
            if ending:
                self._end_clock()
                return
            if self._problem:
                self._stopping.wait(RETRY_S)

    def _end_clock(self) -> None:
        """Note for how long this server has run: one that runs for minutes only would never let anything expire."""
        if self._problem or not self._open:
            return
        with contextlib.suppress(SQLAlchemyError), self._using, self._engine.begin() as connection:
            self._set_clock(connection, time.time())

    def _write(self) -> None:
        """Write what waits, and see to what is no longer kept."""
        try:
            with self._using:
                if self._file.is_lost() and not self._lost:
                    self._let_go()
                self._come_back()
                self._write_batch()
                self._keep_house()
        except (SQLAlchemyError, NcclwatchError, OSError) as error:
            self._failed("write", error)
        except Exception as error:  # the thread must live: a mistake in here would silently keep everything unstored
            self._failed("write", error)
            log.exception("writing the incident store failed in a way that nobody has foreseen")
        else:
            self._worked()

    def _come_back(self) -> None:
        """Open a store that was away when the server started, or has gone since, and tell what it knows."""
        if self._open:
            return
        if self._lost:
            self._engine = database.connect(self._url)
            self._file.note()
        upgrading.upgrade(self._engine)
        with self._engine.begin() as connection:
            known = records.incidents_of(read_incidents(connection)), records.lessons_of(read_lessons(connection))
        self._open = True
        if self.recalled is not None:
            self.recalled(known)
        if self._lost and self.lost is not None:
            self.lost()
        self._lost = False

    def _let_go(self) -> None:
        """Let go of a file that is not the store any more. What is there instead is the store, if need be a new one."""
        self.begun_anew += 1
        self.failures += 1
        log.error(
            "the file of the incident store %s was deleted or replaced: a new one is begun with what is in memory; "
            "older incidents and the audit log are not in it", database.shown(self._url),
        )  # fmt: skip
        self._open, self._lost = False, True
        self._engine.dispose()

    def _write_batch(self) -> None:
        """Write all that waits, in portions: what one has written stays written, whatever becomes of the next."""
        written = 0
        while portion := self._write_portion():
            written += portion
        if written and self._problem:
            log.info("%d incidents, lessons and lines of the audit log that waited are stored now", written)

    def _write_portion(self) -> int:
        """Write the oldest of what waits. Returns how much that was."""
        with self._lock:
            waits = self._pending
            batch = self._writing = Batch(
                incidents=take_oldest(waits.incidents),
                learned=take_oldest(waits.learned),
                audit=take_oldest(waits.audit),
            )
        try:
            if not len(batch):
                return 0
            try:
                with self._engine.begin() as connection:
                    write_all(connection, batch, self._term)
            except _NEVER as error:
                self._write_singly(batch, error)
        except BaseException:
            with self._lock:  # what came meanwhile is newer
                newer = self._pending
                self._pending = Batch(
                    incidents={**batch.incidents, **newer.incidents},
                    learned={**batch.learned, **newer.learned},
                    audit={**batch.audit, **newer.audit},
                )
                self._bound()
            raise
        finally:
            self._writing = Batch()
        return len(batch)

    def _write_singly(self, batch: Batch, error: Exception) -> None:
        """Write each by itself, so that one that the database will never take does not keep back all others."""
        log.error("%s; each is tried by itself", cannot("write", self._url, error))
        singles = [Batch(incidents={key: each}) for key, each in batch.incidents.items()]
        singles += [Batch(learned={key: each}) for key, each in batch.learned.items()]
        singles += [Batch(audit={key: each}) for key, each in batch.audit.items()]
        for single in singles:
            try:
                with self._engine.begin() as connection:
                    write_all(connection, single, self._term)
            except _NEVER as refused:
                self.dropped += 1
                log.error("one is given up: %s", cannot("write", self._url, refused))

    def _bound(self) -> None:
        """Drop the oldest of what waits beyond the bound. Needs the lock."""
        waits = self._pending
        self.dropped += shorten(waits.incidents) + shorten(waits.learned) + shorten(waits.audit)

    def _keep_house(self) -> None:
        if time.monotonic() < self._house_at:
            return
        wall = time.time()
        with self._engine.begin() as connection:
            now = self._set_clock(connection, wall)
            removed = retention.prune(connection, self._keeping, now)
        if wall - now > retention.AHEAD_S and not self._ahead_told:
            self._ahead_told = True
            log.warning(
                "the clock of this machine is %.0f days ahead of what the store %s has seen; if it is right nothing is "
                "wrong: what is too old by it goes within days, %.0f times as fast as time passes, and not at once",
                (wall - now) / retention.DAY_S, database.shown(self._url), retention.PACE,
            )  # fmt: skip
        self._house_at = time.monotonic() + HOUSE_S
        if removed:
            log.info(
                "deleted from the store what is kept no longer: %d incidents, %d lessons, %d lines of the audit log",
                removed.incidents, removed.lessons, removed.audit,
            )  # fmt: skip

    def _set_clock(self, connection: Connection, wall: float) -> float:
        """Let the store's clock go on by what this server has run since it did. Returns how late it is."""
        ran_until = time.monotonic()
        now = retention.advance(connection, wall, ran_until - self._clocked_at)
        self._clocked_at = ran_until
        return now

    def _failed(self, verb: str, error: Exception) -> None:
        self.failures += 1
        # The next try connects anew: an SQLite that once could not open its file for writing has it for reading only.
        self._engine.dispose()
        with self._lock:
            first, self._problem = not self._problem, database.reason(error, self._url)
            if first:
                self._failing_since = time.monotonic()
        if first:
            log.error("%s; judging goes on, and it is tried again", cannot(verb, self._url, error))

    def _worked(self) -> None:
        with self._lock:
            problem, self._problem = self._problem, ""
            self._waiting_since = time.monotonic() if len(self._pending) else 0.0
            self._slow_told = False
        if problem:
            log.info("the incident store %s can be written again", database.shown(self._url))


@contextlib.contextmanager
def opened(url: str) -> Iterator[Store]:
    """Open a store for as long as the context lasts. Raises `ConfigError`."""
    with Store(url) as store:
        yield store
