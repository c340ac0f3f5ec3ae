"""Deletes what a store no longer keeps: what is older or more than was asked for, and jobs that an operator deletes.

How old something is, is never asked of this machine's clock alone: one start with a clock that is 400 days ahead would
delete all history. The store keeps a clock of its own. It goes on at most `PACE` times as fast as servers have run, and
is never ahead of the machine's. So after a pause of 90 days nothing expires at once: it does within four days.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, CursorResult, Delete, and_, delete, func, insert, select, update

from ncclwatch_server.settings import Keeping
from ncclwatch_server.store import tables

DAY_S = 86_400.0
PACE = 24.0
AHEAD_S = 7 * DAY_S  # a machine's clock that is further ahead of the store's is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """How many rows went."""

    incidents: int
    lessons: int
    audit: int = 0

    def __bool__(self) -> bool:
        return bool(self.incidents or self.lessons or self.audit)


def trusted_now(connection: Connection, wall: float) -> float:
    """Return how late it is, in seconds since 1970, as far as the store trusts the clock of this machine."""
    known = connection.execute(select(tables.clock.c.trusted_at)).scalar()
    return wall if known is None else min(wall, float(known))


def advance(connection: Connection, wall: float, ran_s: float) -> float:
    """Let the store's clock go on after a server has run for so long. Returns how late it is now."""
    now = min(wall, trusted_now(connection, wall) + PACE * ran_s)
    changed: CursorResult[tuple[object, ...]] = connection.execute(update(tables.clock).values(trusted_at=now))
    if not changed.rowcount:
        connection.execute(insert(tables.clock).values(id=1, trusted_at=now))
    return now


def prune(connection: Connection, keeping: Keeping, now: float) -> Removed:
    """Delete what is not kept any longer. Open incidents are, however old. `now` is in seconds since 1970."""
    incidents, lessons, audit = tables.incidents.c, tables.lessons.c, tables.audit.c
    oldest = now - keeping.days * DAY_S
    closed = incidents.state != "open"
    removed = _count(
        connection,
        delete(tables.incidents).where(and_(closed, func.coalesce(incidents.closed_at, incidents.opened_at) < oldest)),
    )
    newest_first = (incidents.opened_at.desc(), incidents.id.desc())
    place = func.row_number().over(partition_by=incidents.job, order_by=newest_first).label("place")
    placed = select(incidents.id, place).where(closed).subquery()
    surplus = select(placed.c.id).where(placed.c.place > keeping.incidents_per_job)
    removed += _count(connection, delete(tables.incidents).where(incidents.id.in_(surplus)))
    if removed:  # what was told of incidents that are gone; of those that are not stored yet it is young
        stored = select(incidents.id)
        told = tables.notifications.c
        connection.execute(delete(tables.notifications).where(told.incident.not_in(stored), told.at < oldest))
    connection.execute(delete(tables.silences).where(tables.silences.c.ends_at < now - tables.AUDIT_DAYS * DAY_S))
    return Removed(
        incidents=removed,
        lessons=_count(connection, delete(tables.lessons).where(lessons.learned_at < oldest)),
        audit=_count(connection, delete(tables.audit).where(audit.at < now - tables.AUDIT_DAYS * DAY_S)),
    )


def delete_job(connection: Connection, job: str) -> Removed:
    """Delete what is stored of a job, and what it has taught under its name. The audit log stays."""
    connection.execute(delete(tables.silences).where(tables.silences.c.job == job))
    ours = select(tables.incidents.c.id).where(tables.incidents.c.job == job)
    connection.execute(delete(tables.notifications).where(tables.notifications.c.incident.in_(ours)))
    return Removed(
        incidents=_count(connection, delete(tables.incidents).where(tables.incidents.c.job == job)),
        lessons=_count(connection, delete(tables.lessons).where(tables.lessons.c.job == job)),
    )


def _count(connection: Connection, statement: Delete) -> int:
    result: CursorResult[tuple[object, ...]] = connection.execute(statement)
    return max(0, result.rowcount)
