"""Selects the rows of the store that are the wanted incidents, for SQLite and PostgreSQL alike."""

import msgspec
from sqlalchemy import Select, bindparam, or_, select

from ncclwatch_server.incidents.pagination import Wanted
from ncclwatch_server.store.records import storable
from ncclwatch_server.store.tables import incidents

Query = Select[tuple[object, ...]]


def wanted_rows(wanted: Wanted, held: frozenset[str], limit: int) -> Query:
    """Return the query for incidents that are wanted and not held, the newest first."""
    c = incidents.c
    found = select(incidents).order_by(c.opened_at.desc(), c.id).limit(limit)
    if held:
        # Thousands of ids: written into the text, since SQLite takes a limited number of parameters.
        found = found.where(c.id.not_in(bindparam("held", sorted(held), expanding=True, literal_execute=True)))
    for column, value in ((c.state, wanted.state), (c.severity, wanted.severity), (c.cause, wanted.cause)):
        if value is not None:
            found = found.where(column == value.value)
    if wanted.job is not None:
        found = found.where(c.job == storable(wanted.job))
    if wanted.since is not None:
        found = found.where(c.opened_at >= wanted.since)
    if wanted.until is not None:
        found = found.where(c.opened_at < wanted.until)
    if wanted.text:
        # In the JSON of the body a quote or backslash has a backslash before it.
        written = msgspec.json.encode(storable(wanted.text)).decode()[1:-1]
        found = found.where(
            or_(c.body.icontains(written, autoescape=True), c.job.icontains(storable(wanted.text), autoescape=True))
        )
    if wanted.after is not None:
        found = found.where(c.opened_at < wanted.after.until_s)
    return found


def row_of(incident: str) -> Query:
    """Return the query for one incident."""
    return select(incidents).where(incidents.c.id == storable(incident))
