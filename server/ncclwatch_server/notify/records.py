"""Keeps what alerting must know after a restart: who was told what, and the silences; in the database of incidents.

As the store of incidents: a thread of its own writes, nobody waits for it, and what cannot be written is kept in bounds
and tried again. A database that was away at the start is read when it comes, and one whose file was deleted or replaced
gets all that is known once more. Without a store it remembers as long as the process lives.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType

from sqlalchemy import delete, select
from sqlalchemy.engine import Connection, Engine, Row
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError, SQLAlchemyError, TimeoutError

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine.liveness import LoopLife, keep_thread
from ncclwatch_server import limits
from ncclwatch_server.notify.silences import KEPT_S, Silence, newest_over
from ncclwatch_server.notify.stages import Stage, Told
from ncclwatch_server.store import database, retention, upgrading
from ncclwatch_server.store.batch import is_over, put_row
from ncclwatch_server.store.incident_store import RETRY_S, ROUND_S
from ncclwatch_server.store.tables import notifications as _told
from ncclwatch_server.store.tables import silences as _silences

log = logging.getLogger("ncclwatch.server")

UNWRITTEN_MAX = 10_000
LAST_WRITE_S = 5.0  # at the end: what is not written then may be told twice
TOLD_MAX = 100_000  # kept in memory and in the table

Key = tuple[str, str]  # target, incident
NewTold = dict[Key, tuple[Told, float]]
NewSilences = dict[str, Silence]


class Records:
    """What alerting knows, in memory and in the database."""

    def __init__(self, url: str, term: int = 0) -> None:
        """Open the database; "" stands for none; `term`: see `batch.write_all`. Raises `ConfigError`."""
        self.failures = 0
        self.dropped = 0
        self.recalled: Callable[[tuple[Silence, ...]], None] | None = None  # called by the thread when they come late
        self._url = url
        self._term = term
        self._engine: Engine | None = database.connect(url) if url else None
        self._file = database.StoreFile(url) if url else None
        self._loaded = False
        self._reopen = False  # the file was lost
        self._told: dict[Key, Told] = {}
        self._silences: dict[str, Silence] = {}
        self._new_told: NewTold = {}
        self._new_silences: NewSilences = {}
        self._failing = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self.life = LoopLife("records", age_s_max=limits.PART_STILL_S)
        self._thread = threading.Thread(target=self._live, name="ncclwatch-records", daemon=True)
        if self._engine is not None and self._file is not None:
            self._file.note()
            self._load(self._engine)

    @property
    def silences(self) -> tuple[Silence, ...]:
        """Return all silences that are kept."""
        with self._lock:
            return tuple(self._silences.values())

    def __enter__(self) -> "Records":
        if self._engine is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._engine is None:
            return
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=LAST_WRITE_S)
        self._engine.dispose()

    def told(self, target: str, incident: str) -> Told | None:
        """Return what a target has been told of an incident."""
        with self._lock:
            return self._told.get((target, incident))

    def note(self, target: str, incident: str, told: Told) -> None:
        """Remember what a target has been told. Never waits."""
        key = (target, incident)
        with self._lock:
            self._told.pop(key, None)
            self._told[key] = told
            if len(self._told) > TOLD_MAX:
                self._told.pop(next(iter(self._told)))
            if self._engine is None:
                return
            if key not in self._new_told and len(self._new_told) >= UNWRITTEN_MAX:
                self._new_told.pop(next(iter(self._new_told)))
                self.dropped += 1
            self._new_told[key] = (told, time.time())
        self._wake.set()

    def keep_silence(self, silence: Silence) -> None:
        """Keep the newest form of a silence. Never waits."""
        if self._engine is None:
            return
        with self._lock:
            self._silences[silence.id] = silence
            now = time.time()
            standing = [each for each in self._silences.values() if each.ends_at > now]
            self._silences = {each.id: each for each in (*newest_over(self._silences.values(), now), *standing)}
            if silence.id not in self._new_silences and len(self._new_silences) >= UNWRITTEN_MAX:
                self._new_silences.pop(next(iter(self._new_silences)))
                self.dropped += 1
            self._new_silences[silence.id] = silence
        self._wake.set()

    def _load(self, engine: Engine) -> None:
        """Read all there is, if the database is at hand. Raises `ConfigError` if waiting for it would not help."""
        try:
            self._read(engine)
        except SQLAlchemyError as error:
            if not database.is_passing(error):
                raise ConfigError(f"cannot read what was told of incidents ({_cause(error)}); see --store") from error
            log.warning("the notifications sent before, and the silences, cannot be read yet (%s)", _cause(error))

    def _read(self, engine: Engine) -> None:
        """Read all there is, and forget what is old. What is known already is newer."""
        newest = select(_told).order_by(_told.c.at.desc()).limit(TOLD_MAX)
        upgrading.upgrade(engine)
        with engine.begin() as connection:
            since = retention.trusted_now(connection, time.time()) - KEPT_S
            # Of an incident that still stands it must be known however old it is: only what is over is forgotten.
            connection.execute(delete(_told).where(_told.c.at < since, _told.c.stage == Stage.RESOLVED.value))
            connection.execute(delete(_silences).where(_silences.c.ends_at < since))
            rows = list(connection.execute(newest))
            silences = {str(row.id): Silence(**row._mapping) for row in connection.execute(select(_silences))}
        told = {(str(row.target), str(row.incident)): _revive(row) for row in reversed(rows)}
        with self._lock:
            self._told = {**{key: said for key, said in told.items() if said is not None}, **self._told}
            self._silences = {**silences, **self._silences}
        self._loaded = True

    def _live(self) -> None:
        keep_thread(self.life, log, self._run, self._stopping)

    def _run(self) -> None:
        while True:
            self._wake.wait(RETRY_S if self._failing else ROUND_S)
            self._wake.clear()
            self.life.went_round()
            ending = self._stopping.is_set()  # asked before: what came before the end is written
            self._write()
            if ending:
                return
            if self._failing:
                self._stopping.wait(RETRY_S)

    def _write(self) -> None:
        """Write what waits. Whatever fails, the thread lives on, and what was not written waits."""
        if self._engine is None or self._file is None:
            return
        if self._file.is_lost() and not self._reopen:
            self._let_go(self._engine)
        with self._lock:
            told, self._new_told = self._new_told, {}
            silences, self._new_silences = self._new_silences, {}
        try:
            self._put_all(self._at_hand(self._engine), told, silences)
        except Exception as error:
            if not isinstance(error, SQLAlchemyError | ConfigError | OSError):
                log.exception("writing what was told of incidents failed in a way that nobody has foreseen")
            self._failed(self._engine, error)
            with self._lock:  # what came meanwhile is newer
                self._new_told = {**told, **self._new_told}
                self._new_silences = {**silences, **self._new_silences}
            return
        if self._failing:
            log.info("notifications that were sent can be recorded again")
        self._failing = False

    def _failed(self, engine: Engine, error: Exception) -> None:
        self.failures += 1
        engine.dispose()  # see `incident_store`
        if not self._failing:
            log.error(
                "cannot record which notifications were sent (%s); alerting goes on, and writing is retried, but "
                "after a restart before that a notification may be sent twice", _cause(error),
            )  # fmt: skip
        self._failing = True

    def _let_go(self, engine: Engine) -> None:
        """Let go of a file that is not the store any more, and see to it that the next one gets all that is known."""
        log.error("the file of the store was deleted or replaced: sent notifications and silences are recorded again")
        self._loaded, self._reopen = False, True
        engine.dispose()
        now = time.time()
        with self._lock:
            known = list(self._told.items())[-UNWRITTEN_MAX:]
            self._new_told = {**{key: (told, now) for key, told in known}, **self._new_told}
            self._new_silences = {**self._silences, **self._new_silences}

    def _at_hand(self, engine: Engine) -> Engine:
        """Return the engine of a database that has been read. One that was away, or is a new one, is read now."""
        if self._loaded:
            return engine
        if self._reopen and self._file is not None:
            engine = self._engine = database.connect(self._url)
            self._file.note()
        self._read(engine)
        self._reopen = False
        if self.recalled is not None:
            self.recalled(self.silences)
        return engine

    def _put_all(self, engine: Engine, told: NewTold, silences: NewSilences) -> None:
        """Write all of it. Raises `SQLAlchemyError` if the database cannot write now."""
        if not told and not silences:
            return
        try:
            with engine.begin() as connection:
                _put(connection, told, silences, self._term)
        except Exception as error:
            if _may_pass(error):
                raise
            log.exception("what was told of incidents cannot be written together; each is tried by itself")
            singles: list[tuple[NewTold, NewSilences]] = [({key: each}, {}) for key, each in told.items()]
            singles += [({}, {key: each}) for key, each in silences.items()]
            for single in singles:
                self._put_one(engine, *single)

    def _put_one(self, engine: Engine, told: NewTold, silences: NewSilences) -> None:
        """Write one, or give it up for good: it must not keep back all others, nor end the thread."""
        try:
            with engine.begin() as connection:
                _put(connection, told, silences, self._term)
        except Exception as error:
            if _may_pass(error):
                raise
            self.dropped += 1
            what = f"target {next(iter(told))[0]!r}" if told else f"silence {next(iter(silences))!r}"
            log.error("one is given up, of %s (%s); after a restart it is not known", what, _cause(error))


def _may_pass(error: Exception) -> bool:
    """Whether a write that failed so may succeed later: what the database will never take does not."""
    if isinstance(error, OperationalError | InternalError | TimeoutError):
        return True
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _put(connection: Connection, told: NewTold, silences: NewSilences, term: int) -> None:
    over = is_over(connection, term)
    for (target, incident), (said, at) in told.items():
        key = {"target": target, "incident": incident}
        row = {"stage": said.stage.value, "messages": said.count, "digest": said.digest, "urgency": said.urgency}
        same = (_told.c.target == target, _told.c.incident == incident)
        put_row(connection, _told, {**key, "at": at, **row}, same, over=over)
    for silence in silences.values():
        put_row(connection, _silences, asdict(silence), (_silences.c.id == silence.id,), over=over)


def _revive(row: "Row[tuple[object, ...]]") -> Told | None:
    """Return what a row says, None if another version wrote what this one does not know."""
    try:
        stage = Stage(row.stage)
    except ValueError:
        log.warning(
            "cannot read what was sent to target %s about incident %s; it is left alone", row.target, row.incident
        )
        return None
    return Told(stage=stage, count=int(row.messages), digest=str(row.digest), urgency=int(row.urgency))


def _cause(error: Exception) -> object:
    return getattr(error, "orig", None) or error
