"""Selects the incidents that somebody wants, page by page. Pure.

Incidents are listed from the newest on. A page ends at an incident, and the next one begins behind it, so that what
opens meanwhile shifts nothing.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from ncclwatch.contract import config, job_labels, job_names
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch_server.incidents.book import Incident, IncidentState

LIMIT = 500
LIMIT_MAX = config.INCIDENTS_PAGE_MAX
ROUNDS_MAX = 8  # looks into the store for a text, of a page each
CLOSE_MAX = 64  # incidents of one millisecond, in which the last page may have ended
CURSOR_PATTERN = r"^[0-9]{1,15}_[0-9A-Za-z-]{1,40}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The last incident of a page."""

    opened_ms: int  # since 1970
    id: str

    def __str__(self) -> str:
        return f"{self.opened_ms}_{self.id}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Return the cursor that a text stands for. Raises `ValueError`."""
        if not re.match(CURSOR_PATTERN, text):
            raise ValueError(f"{text!r} is no place in a list of incidents; take it from the link to the next page")
        opened, _, incident = text.partition("_")
        return cls(opened_ms=int(opened), id=incident)

    @property
    def place(self) -> tuple[int, str]:
        """What rises along the list."""
        return (-self.opened_ms, self.id)

    @property
    def until_s(self) -> float:
        """Nothing after this moment, in seconds since 1970, lies behind the cursor."""
        return (self.opened_ms + 1) / 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an incident has to be."""

    job: str | None = None
    state: IncidentState | None = None
    severity: Severity | None = None
    cause: Cause | None = None
    since: float | None = None  # opened at or after, in seconds since 1970
    until: float | None = None  # opened before
    text: str = ""  # part of the job, its user or labels, the sentences, or a culprit's host or file, in any case
    namespace: str | None = None  # what stands before the first "/" of the job's name
    user: str | None = None
    labels: tuple[str, ...] = ()  # NAME or NAME=PATTERN, all of them
    after: Cursor | None = None
    limit: int = LIMIT

    def fits(self, incident: Incident) -> bool:
        """Whether an incident is wanted, on this page or a later one."""
        verdict = incident.verdict
        return (
            self.job in (None, incident.job)
            and self.state in (None, incident.state)
            and self.severity in (None, verdict.severity)
            and self.cause in (None, verdict.cause)
            and (self.since is None or incident.opened_at >= self.since)
            and (self.until is None or incident.opened_at < self.until)
            and (self.after is None or cursor_of(incident).place > self.after.place)
            and self.namespace in (None, job_names.namespace(incident.job))
            and self.user in (None, incident.user)
            and job_labels.match(incident.labels, self.labels)
            and (not self.text or self.text.lower() in _text_of(incident))
        )

    @property
    def is_vague(self) -> bool:
        """Whether a store finds more than is wanted."""
        return bool(self.text or self.labels) or self.user is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some incidents, the newest first."""

    incidents: tuple[Incident, ...]
    next: Cursor | None  # None: there are no more
    without: str = ""  # why those are missing of which only the store knows


Finder = Callable[[Wanted, frozenset[str], int], tuple[Incident, ...]]


def page_of(wanted: Wanted, known: Iterable[Incident], stored: Finder) -> Page:
    """Return a page of what the server holds and what only its store has. What is held is newer than the same stored.

    `stored` returns at most so many incidents that are wanted and not among those with these ids, the newest first.
    """
    held = {incident.id: incident for incident in known}
    mine = sorted(filter(wanted.fits, held.values()), key=_place)
    # Of the store only what can be on this page: reading an incident with its stacks costs.
    last = mine[wanted.limit].opened_at - 0.001 if len(mine) > wanted.limit else None
    asked = wanted if last is None else replace(wanted, since=max(last, wanted.since or last))
    room = wanted.limit + CLOSE_MAX
    older: list[Incident] = []
    looked: Cursor | None = None  # how far, where the store may have more
    # The store finds words anywhere in an incident, also in its stacks: of these only some are wanted.
    for _ in range(ROUNDS_MAX if wanted.is_vague else 1):
        batch = stored(asked if looked is None else replace(asked, after=looked), frozenset(held), room)
        older += filter(wanted.fits, batch)
        looked = cursor_of(batch[-1]) if len(batch) == room else None
        if looked is None or len(older) > wanted.limit:
            break
    if looked is not None:  # nothing that is held may come before what nobody has looked at
        mine = [incident for incident in mine if _place(incident) <= looked.place]
    found = sorted((*mine, *older), key=_place)
    shown = found[: wanted.limit]
    if len(found) > len(shown):
        return Page(incidents=tuple(shown), next=cursor_of(shown[-1]))
    return Page(incidents=tuple(shown), next=looked)


def _text_of(incident: Incident) -> str:
    """Return what is searched for a text, in small letters."""
    verdict = incident.verdict
    culprits = (
        f"{each.host} {each.call_site.file if each.call_site is not None else ''}" for each in verdict.culprits[:64]
    )
    return " ".join(
        (incident.job, incident.user, incident.labels, verdict.summary, verdict.explanation, verdict.advice, *culprits)
    ).lower()


def cursor_of(incident: Incident) -> Cursor:
    """Return the place of an incident in the list."""
    return Cursor(opened_ms=_opened_ms(incident), id=incident.id)


def seconds_of(moment: datetime) -> float:
    """Return seconds since 1970; a moment without a zone is UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _place(incident: Incident) -> tuple[int, str]:
    return cursor_of(incident).place


def _opened_ms(incident: Incident) -> int:
    # What was stored comes back with milliseconds: a float that is a little less is the same one.
    return math.floor(incident.opened_at * 1000 + 1e-3)
