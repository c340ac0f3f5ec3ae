"""Speaks to the database that is the store: an SQLite file, or PostgreSQL."""

import re
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.network.urls import hidden

BUSY_S = 5.0  # for which a user of an SQLite file waits for another
BUSY_RETRY_S = 0.02
STATEMENTS_MAX = 16  # that SQLite keeps compiled for a connection: one with a thousand ids in it takes 170 KB
IMMEDIATE = "ncclwatch_immediate"  # execution option: this transaction of SQLite will write

# Of the writer a store that does not answer takes no more than this, until it is tried again.
_POSTGRESQL = {
    "connect_timeout": "5",
    "application_name": "ncclwatch-server",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "10",
    "options": "-c statement_timeout=15000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=60000",
}
# A server that answers so is one that will soon take us.
_PASSING = re.compile(r"starting up|shutting down|in recovery|too many (clients|connections)|connection slots")


class StoreFile:
    """The file of an SQLite store, which somebody may delete or replace while it is open. PostgreSQL has none."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        named = parsed.database if parsed.get_backend_name() == "sqlite" else None
        self._path = None if named in (None, "", ":memory:") else Path(str(named))
        self._known: tuple[int, int] | None = None

    def note(self) -> None:
        """Note which file it is now."""
        self._known = self._find()

    def is_lost(self) -> bool:
        """Whether the file that was noted is not the one under that name any more."""
        return self._known is not None and self._find() != self._known

    def _find(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def connect(url: str) -> Engine:
    """Return an engine for a store, which has not been asked anything yet. Raises `ConfigError`."""
    try:
        parsed = _normal(make_url(url))
        if parsed.get_backend_name() == "postgresql":
            arguments = {key: value for key, value in _POSTGRESQL.items() if key not in parsed.query}
            # The writer and one reader: the store is no place for a crowd.
            return create_engine(parsed, connect_args=arguments, pool_pre_ping=True, pool_size=2, max_overflow=2)
        if parsed.get_backend_name() != "sqlite":
            raise ConfigError(
                f"the store {shown(url)} is of a kind that ncclwatch does not know; "
                "name an SQLite file or postgresql://USER@HOST/DATABASE with --store"
            )
        if parsed.database not in (None, "", ":memory:"):
            path = Path(parsed.database)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)  # stacks show lines of programs: they are nobody else's business
        engine = create_engine(parsed, connect_args={"cached_statements": STATEMENTS_MAX})
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the store {shown(url)} needs the package {error.name}: pip install 'ncclwatch[postgres]', "
            "or name another with --store"
        ) from error
    except (SQLAlchemyError, OSError, ValueError) as error:
        raise ConfigError(cannot("open", url, error)) from error
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def forget_for_good(engine: Engine) -> None:
    """Let nothing of what was deleted stay in the files of an SQLite store, as soon as its other users let us."""
    if engine.dialect.name == "sqlite":
        with suppress(SQLAlchemyError, sqlite3.Error), engine.connect() as connection:
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


def is_passing(error: Exception) -> bool:
    """Whether a store that could not be opened may well be there later: waiting helps, correcting does not."""
    if not isinstance(error, OperationalError):
        return False
    said = str(error.orig)
    if error.connection_invalidated or "FATAL" not in said:
        return any(
            word in said for word in ("refused", "timeout", "timed out", "unreachable", "is full", "is locked")
        ) or ("server closed the connection" in said)
    return _PASSING.search(said) is not None


def cannot(verb: str, url: str, error: Exception) -> str:
    """Return the sentence for a store that failed."""
    return f"cannot {verb} the incident store {shown(url)} ({reason(error, url)}); name another with --store"


def reason(error: Exception, url: str) -> str:
    """Return what a database said, on one line, without what its address must not tell."""
    cause = getattr(error, "orig", None) or error
    return " ".join(hidden(str(cause), *_secrets(url)).split())[:500] or type(cause).__name__


def shown(url: str) -> str:
    """Return the address of a store without its user and password, nor anything behind its name: both may be there."""
    try:
        named = make_url(url)
    except (ArgumentError, ValueError):  # as for a port that is no number, which may be half of a password
        return "that was named"
    return URL.create(named.drivername, host=named.host, port=named.port, database=named.database).render_as_string()


def _secrets(url: str) -> tuple[str, ...]:
    try:
        named = make_url(url)
    except (ArgumentError, ValueError):
        return (*(part for part in re.split(r"[:@/?&=]+", url.partition("://")[2]) if part), url)
    options = (each for value in named.query.values() for each in ((value,) if isinstance(value, str) else value))
    password = str(named.password or "")
    return password, quote(password, safe=""), *options


def _normal(url: URL) -> URL:
    """Return the address with the one driver that is used: the store has a thread of its own, and needs no other."""
    if url.drivername in ("postgres", "postgresql", "postgresql+asyncpg"):
        return url.set(drivername="postgresql+psycopg")
    return url


def _keep_a_log_ahead(cursor: DBAPICursor) -> None:
    """Let a file have a write-ahead log. SQLite does not wait for others that do the same to a new file: we do."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "is locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(BUSY_RETRY_S)


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # The driver begins transactions by itself, and not before a change of the schema: we say when.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_S * 1000:.0f}")
    _keep_a_log_ahead(cursor)
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and then writes could find itself overtaken, and fail.
    immediate = connection.get_execution_options().get(IMMEDIATE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
