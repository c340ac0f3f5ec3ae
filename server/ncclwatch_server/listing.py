"""Which incidents does a list show, and where does its next page begin? Pure.

A page begins after an incident that the reader has seen, not at a number: what opens meanwhile shifts nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated

from fastapi import Query

from ncclwatch.contract.model import Cause, Severity
from ncclwatch_server import settings
from ncclwatch_server.incidents import Incident, IncidentState

LIMIT_MAX = settings.OPEN_MAX + settings.CLOSED_KEPT_MAX  # all there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a reader wants to see. Times are of the opening; one without a zone is UTC."""

    job: str | None = None
    state: IncidentState | None = None
    severity: Severity | None = None
    cause: Cause | None = None
    since: datetime | None = None
    until: datetime | None = None
    within_s: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None  # back from now, on the server's clock
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_MAX
    before: str | None = None  # id of the incident that was listed last: the page begins after it


class NoSuchPage(Exception):
    """The incident after which a page was to begin is not known."""


def page(incidents: Iterable[Incident], wanted: Wanted, now: float) -> tuple[Incident, ...]:
    """Return one page of incidents, in their order. `now` in seconds since 1970. Raises `NoSuchPage`."""
    listed = tuple(incidents)
    if wanted.before is not None:
        places = [place for place, incident in enumerate(listed) if incident.id == wanted.before]
        if not places:
            raise NoSuchPage
        listed = listed[places[0] + 1 :]
    return tuple(incident for incident in listed if _fits(incident, wanted, now))[: wanted.limit]


def _fits(incident: Incident, wanted: Wanted, now: float) -> bool:
    verdict = incident.verdict
    return (
        wanted.job in (None, incident.job)
        and wanted.state in (None, incident.state)
        and wanted.severity in (None, verdict.severity)
        and wanted.cause in (None, verdict.cause)
        and (wanted.since is None or incident.opened_at >= _seconds(wanted.since))
        and (wanted.until is None or incident.opened_at < _seconds(wanted.until))
        and (wanted.within_s is None or incident.opened_at >= now - wanted.within_s)
    )


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
