"""Keeps in the database which server leads: one row, changed only by compare and swap.

No clock is compared, as in Kubernetes' leader election (client-go, tools/leaderelection): a follower takes the lease
after it has seen it unchanged for so long by its own clock. `term` is the fencing token of Kleppmann, "How to do
distributed locking" (2016): what a leader of an older term still writes does not replace what a newer one has written.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Timer
from typing import Protocol

from sqlalchemy import create_engine, delete, event, insert, select, update
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch_server.store import database, upgrading
from ncclwatch_server.store.tables import leadership as _leadership
from ncclwatch_server.store.tables import servers as _servers

SERVERS_MAX = 16  # candidates that are read
ANSWER_S = 2.5  # a database that was halted keeps no deadline itself, and its kernel acknowledges what it is sent
_ROW = 1
# A lease that is not answered soon is not renewed: nothing here may wait for as long as the incident store may.
_IMPATIENT = {
    "connect_timeout": "2",
    "application_name": "ncclwatch-server election",
    "tcp_user_timeout": "3000",
    "options": "-c statement_timeout=2000 -c lock_timeout=2000 -c idle_in_transaction_session_timeout=5000",
}


class LeaseUnavailable(NcclwatchError):
    """The database does not answer, or does not take what is written."""


class HasDescriptor(Protocol):
    """A connection to the database, as its driver has it."""

    def fileno(self) -> int:
        """Return its descriptor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A server that would lead."""

    id: str  # of its process
    url: str  # where agents and other servers reach it
    beat: int = 0  # it lives if this changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who leads. It was renewed since if `beat` has changed."""

    holder: str  # `Candidate.id`; "": it was released
    url: str
    term: int
    beat: int


class LeaseTable:
    """The lease, as one server reads and writes it. Each method waits for the database; `LeaseUnavailable` if in vain.

    To be used by one thread.
    """

    def __init__(self, url: str, me: Candidate) -> None:
        self.me = me
        self._url = url
        self._engine = _connect(url)
        self._line: socket.socket | None = None  # the newest connection's
        if self._engine.dialect.name == "postgresql":
            event.listen(self._engine, "connect", self._connected)
        self._beat = 0
        self._upgraded = False

    def close(self) -> None:
        """Let go of the connection."""
        self._engine.dispose()
        self._forget_line()

    def read(self) -> tuple[Lease | None, tuple[Candidate, ...]]:
        """Return who leads, None if nobody ever has, and the other candidates. Says that this one is there, too."""
        self._upgrade()
        self._beat += 1
        mine = _servers.c.id == self.me.id
        with self._using() as connection:
            row = connection.execute(select(_leadership).where(_leadership.c.id == _ROW)).first()
            if not connection.execute(update(_servers).where(mine).values(beat=self._beat)).rowcount:
                connection.execute(insert(_servers).values(id=self.me.id, url=self.me.url, beat=self._beat))
            others = connection.execute(select(_servers).where(~mine).limit(SERVERS_MAX)).all()
        lease = Lease(holder=row.holder, url=row.url, term=row.term, beat=row.beat) if row is not None else None
        return lease, tuple(Candidate(id=each.id, url=each.url, beat=each.beat) for each in others)

    def acquire(self, seen: Lease | None) -> Lease | None:
        """Take the lease if it still is what was seen. Returns it, None if it was changed meanwhile."""
        mine = Lease(
            holder=self.me.id, url=self.me.url,
            term=seen.term + 1 if seen is not None else 1, beat=seen.beat + 1 if seen is not None else 1,
        )  # fmt: skip
        values = {"holder": mine.holder, "url": mine.url, "term": mine.term, "beat": mine.beat}
        try:
            with self._using() as connection:
                if seen is None:
                    connection.execute(insert(_leadership).values(id=_ROW, **values))
                    return mine
                unchanged = (_leadership.c.term == seen.term) & (_leadership.c.beat == seen.beat)
                taken = connection.execute(update(_leadership).where(unchanged).values(**values)).rowcount
        except IntegrityError:  # another one was first
            return None
        return mine if taken else None

    def renew(self, mine: Lease) -> Lease | None:
        """Keep the lease. Returns it, None if another server has it."""
        held = (_leadership.c.holder == self.me.id) & (_leadership.c.term == mine.term)
        renewed = Lease(holder=mine.holder, url=mine.url, term=mine.term, beat=mine.beat + 1)
        with self._using() as connection:
            kept = connection.execute(update(_leadership).where(held).values(beat=renewed.beat)).rowcount
        return renewed if kept else None

    def leave(self, mine: Lease | None) -> None:
        """Release the lease if this server has it, so that nobody waits for it to expire, and be no candidate."""
        with self._using() as connection:
            connection.execute(delete(_servers).where(_servers.c.id == self.me.id))
            if mine is not None:
                held = (_leadership.c.holder == self.me.id) & (_leadership.c.term == mine.term)
                connection.execute(update(_leadership).where(held).values(holder="", beat=mine.beat + 1))

    def forget(self, others: tuple[str, ...]) -> None:
        """Forget candidates that have been silent for long."""
        with self._using() as connection:
            connection.execute(delete(_servers).where(_servers.c.id.in_(others)))

    def _upgrade(self) -> None:
        """Bring the database up to this version, once. Raises `ConfigError` for a newer one."""
        if self._upgraded:
            return
        engine = database.connect(self._url)  # which may take longer than what follows
        try:
            upgrading.upgrade(engine)
        except SQLAlchemyError as error:
            raise LeaseUnavailable(database.cannot("open", self._url, error)) from error
        finally:
            engine.dispose()
        self._upgraded = True

    def _connected(self, connection: HasDescriptor, _: object) -> None:
        self._forget_line()
        self._line = socket.socket(fileno=os.dup(connection.fileno()))

    def _forget_line(self) -> None:
        if self._line is not None:
            self._line.close()

    def _hang_up(self) -> None:
        """Break the connection: whoever waits for an answer is told so."""
        if self._line is not None:
            with suppress(OSError):  # it is broken already
                self._line.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _using(self) -> Iterator[Connection]:
        patience = Timer(ANSWER_S, self._hang_up)
        patience.daemon = True
        with suppress(RuntimeError):  # no room for a thread
            patience.start()
        try:
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError:
            raise
        except SQLAlchemyError as error:
            raise LeaseUnavailable(database.cannot("use", self._url, error)) from error
        finally:
            patience.cancel()


def _connect(url: str) -> Engine:
    """Return an engine of its own: the store's may be busy for seconds."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        arguments = {key: value for key, value in _IMPATIENT.items() if key not in parsed.query}
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"), connect_args=arguments, pool_pre_ping=True, pool_size=1
        )
    return create_engine(parsed)
