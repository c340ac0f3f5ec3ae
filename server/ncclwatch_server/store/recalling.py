"""Reads what a store knew before this server started."""

from sqlalchemy import delete, select
from sqlalchemy.engine import Connection, Row

from ncclwatch_server import limits
from ncclwatch_server.store import tables

LESSONS_MAX = 8192  # kept; the oldest go first


def read_incidents(connection: Connection) -> list[Row[tuple[object, ...]]]:
    """Return the rows of the open incidents and of the newest closed ones."""
    incidents = tables.incidents
    newest = select(incidents).order_by(incidents.c.opened_at.desc())
    found = list(connection.execute(newest.where(incidents.c.state == "open").limit(limits.OPEN_MAX)))
    return found + list(connection.execute(newest.where(incidents.c.state != "open").limit(limits.CLOSED_KEPT_MAX)))


def read_lessons(connection: Connection) -> list[Row[tuple[object, ...]]]:
    """Return the rows of the newest lessons, the oldest first, and forget the others."""
    # What is more than is kept is forgotten here: a server is started often enough.
    lessons = tables.lessons
    found = list(connection.execute(select(lessons).order_by(lessons.c.learned_at.desc()).limit(LESSONS_MAX)))
    if len(found) == LESSONS_MAX:
        connection.execute(delete(lessons).where(lessons.c.learned_at < found[-1].learned_at))
    return found[::-1]
