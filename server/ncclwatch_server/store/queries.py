"""Selects the rows of the store that are the wanted incidents, for SQLite and PostgreSQL alike."""

from collections.abc import Iterator

import msgspec
from sqlalchemy import ColumnElement, Select, bindparam, or_, select

from ncclwatch_server.incidents.pagination import Wanted
from ncclwatch_server.store.records import storable
from ncclwatch_server.store.tables import incidents

Query = Select[tuple[object, ...]]


def wanted_rows(wanted: Wanted, held: frozenset[str], limit: int) -> Query:
    """Return the query for incidents that are wanted and not held, the newest first."""
    c = incidents.c
    found = select(incidents).order_by(c.opened_at.desc(), c.id).limit(limit)
    if held:
        found = found.where(_not_held(held))
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
        found = found.where(or_(_says(wanted.text), c.job.icontains(storable(wanted.text), autoescape=True)))
    found = found.where(*_of_jobs(wanted))
    if wanted.after is not None:
        found = found.where(c.opened_at < wanted.after.until_s)
    return found


def loss_rows(since: float, held: frozenset[str], limit: int) -> Query:
    """Return the query for what counts of hangs that were reported since then and are not held, the newest first."""
    c = incidents.c
    columns = (c.job, c.cause, c.fate, c.onset_at, c.closed_at, c.over_at, c.world_size, c.gpus, c.timeout_s)
    found = select(*columns).where(c.opened_at >= since, c.onset_at.is_not(None))
    if held:
        found = found.where(_not_held(held))
    return found.order_by(c.opened_at.desc(), c.id).limit(limit)


def _not_held(held: frozenset[str]) -> ColumnElement[bool]:
    # Thousands of ids: written into the text, since SQLite takes a limited number of parameters.
    return incidents.c.id.not_in(bindparam("held", sorted(held), expanding=True, literal_execute=True))


def _of_jobs(wanted: Wanted) -> Iterator[ColumnElement[bool]]:
    """Yield what is known here of the jobs whose incidents are wanted: of user and labels, that the words are there."""
    job = incidents.c.job
    if wanted.namespace:
        yield job.startswith(f"{storable(wanted.namespace)}/", autoescape=True)
    elif wanted.namespace is not None:
        yield job.not_like("%/%")
    for word in (wanted.user or "", *(label.partition("=")[0].strip() for label in wanted.labels)):
        if word:
            yield _says(word)


def _says(text: str) -> ColumnElement[bool]:
    """Return whether the body of an incident has a text somewhere, in any case of its letters."""
    # In JSON a quote or backslash has a backslash before it.
    written = msgspec.json.encode(storable(text)).decode()[1:-1]
    return incidents.c.body.icontains(written, autoescape=True)


def row_of(incident: str) -> Query:
    """Return the query for one incident."""
    return select(incidents).where(incidents.c.id == storable(incident))
