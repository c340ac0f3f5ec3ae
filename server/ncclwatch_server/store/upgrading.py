"""Brings an older store up to this version, and leaves a newer one alone.

All steps are one transaction: a store that cannot be upgraded stays as it was. alembic is loaded only where there is
something to do.
"""

import logging
from pathlib import Path

from sqlalchemy import Connection, inspect
from sqlalchemy.engine import Engine

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.version import VERSION
from ncclwatch_server.store.database import IMMEDIATE, shown

log = logging.getLogger("ncclwatch.server")

SCHEMA = "0007"  # the newest step
_LOCK = 7_166_001_413  # of PostgreSQL: two servers that start at once upgrade one after the other


def upgrade(engine: Engine) -> None:
    """Bring a store up to this version. Raises `ConfigError` for a newer one, and what SQLAlchemy raises."""
    with engine.connect() as connection:
        if _version(connection) == SCHEMA:
            return
    # sqlite: whoever comes second must wait, and then find that it is done
    with engine.connect().execution_options(**{IMMEDIATE: True}) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        found = _version(connection)
        if found > SCHEMA:
            raise ConfigError(
                f"the store {shown(str(engine.url))} was written by a newer ncclwatch-server (its schema is {found}, "
                f"{VERSION} knows them up to {SCHEMA}); install that version again, or name another store with --store"
            )
        if found != SCHEMA:
            _apply(connection)
    if found and found != SCHEMA:
        log.info("the store %s was brought from schema %s to %s", shown(str(engine.url)), found, SCHEMA)


def _version(connection: Connection) -> str:
    """Return the newest step a store has seen, "" for one without."""
    if not inspect(connection).has_table("alembic_version"):
        return ""
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return str(found or "")


def _apply(connection: Connection) -> None:
    # Half a second that only a new or an older store costs.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
