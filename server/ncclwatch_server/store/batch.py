"""Holds what waits to be written, and writes it portion by portion."""

import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from sqlalchemy import BigInteger, ColumnElement, String, Table, and_, cast, delete, func, insert, or_, select, update
from sqlalchemy.engine import Connection

from ncclwatch_server import limits
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.security.audit import AuditEntry
from ncclwatch_server.store import records, tables
from ncclwatch_server.store.records import Learned, Values

PORTION = 50  # of each kind, in one transaction
SAME_S = 1.0  # between the openings of one incident: an earlier version has stored them rounded
PAUSE_S = 0.001  # between the rows of two incidents

_Key = TypeVar("_Key", bound=Hashable)
_Thing = TypeVar("_Thing")


@dataclass(slots=True, kw_only=True)
class Batch:
    """What waits to be written, the newest form of each, the oldest first."""

    incidents: dict[str, Incident] = field(default_factory=dict)
    learned: dict[tuple[str, str], Learned] = field(default_factory=dict)
    audit: dict[str, AuditEntry] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.incidents) + len(self.learned) + len(self.audit)


def take_oldest(waits: dict[_Key, _Thing]) -> dict[_Key, _Thing]:
    """Take the oldest out of a queue, as many as are written at once."""
    return {key: waits.pop(key) for key in list(islice(waits, PORTION))}


def shorten(waits: dict[_Key, _Thing]) -> int:
    """Take the oldest out of a queue that is too long. Returns how many."""
    surplus = list(islice(waits, max(0, len(waits) - limits.UNSTORED_MAX)))
    for key in surplus:
        del waits[key]
    return len(surplus)


def _gently(incidents: Iterable[Incident]) -> Iterator[Values]:
    """Yield the rows of incidents. Merging their stacks takes milliseconds each, in between which others may go on."""
    for incident in incidents:
        yield records.incident_row(incident)
        time.sleep(PAUSE_S)


def write_all(connection: Connection, batch: Batch, term: int = 0) -> None:
    """Write all of it. Whatever a broken connection left written already is written again, and stays one row.

    `term` is that in which this server leads, 0 for a single server. What a leader of a newer term has written stays.
    """
    lessons, audit = tables.lessons, tables.audit
    over = is_over(connection, term)
    if batch.incidents:
        _write_incidents(connection, batch.incidents, term, over=over)
    for each in batch.learned.values():
        row = records.lesson_row(each)
        put_row(connection, lessons, row, (lessons.c.job == row["job"], lessons.c.kind == row["kind"]), over=over)
    if batch.audit:
        there = set(connection.scalars(select(audit.c.id).where(audit.c.id.in_(tuple(batch.audit)))))
        if new := [records.audit_row(each) for key, each in batch.audit.items() if key not in there]:
            connection.execute(insert(audit), new)


def is_over(connection: Connection, term: int) -> bool:
    """Say whether a newer term than this one has begun; of a single server, which has none, it never has."""
    return bool(term) and (connection.scalar(select(tables.leadership.c.term)) or 0) > term


def put_row(
    connection: Connection, table: Table, row: Mapping[str, object], same: Iterable[ColumnElement[bool]], *, over: bool
) -> None:
    """Write a row in place of the `same` one. Where a newer leader may have written that, it stays."""
    where = and_(*same)
    if not over:
        connection.execute(delete(table).where(where))
    elif connection.execute(select(table).where(where).limit(1)).first() is not None:
        return
    connection.execute(insert(table), row)


def _write_incidents(connection: Connection, batch: dict[str, Incident], term: int, *, over: bool) -> None:
    incidents = tables.incidents
    named = incidents.c.id.in_(tuple(batch))
    # A single server has no other one beside it, also where several were before.
    mine = (named, incidents.c.term <= term) if term else (named,)
    _keep_earlier(connection, batch, mine)
    connection.execute(delete(incidents).where(*mine))
    newer = set(connection.scalars(select(incidents.c.id).where(named)))
    # The leader of a newer term judges anew what is open; nobody else knows of what is over.
    rows = [
        {**row, "term": term}
        for row in _gently(each for key, each in batch.items() if key not in newer and not (over and each.open))
    ]
    if rows:
        connection.execute(insert(incidents), rows)


def _keep_earlier(connection: Connection, batch: Mapping[str, Incident], mine: Iterable[ColumnElement[bool]]) -> None:
    """Give earlier hangs of the same ranks at the same place ids of their own.

    An id follows from the place, and a server looks for a free one among those that it has in memory. One statement,
    which writes: a transaction that has only read cannot wait for a writer in SQLite.
    """
    c = tables.incidents.c
    earlier = [and_(c.id == key, func.abs(c.opened_at - each.opened_at) > SAME_S) for key, each in batch.items()]
    own = c.id.concat("-").concat(cast(cast(c.opened_at, BigInteger), String))
    connection.execute(update(tables.incidents).where(*mine, or_(*earlier)).values(id=own))
