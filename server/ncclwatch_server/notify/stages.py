"""Decides what one target is told next of one incident: first, once more with stacks, and when it is over.

Pure. It follows from the incident as it is now and from what the target has been told, not from a queue of events: so
a target that was away, and a server that was restarted, go on where they were, and nothing is told twice.
"""

import hashlib
from dataclasses import dataclass
from enum import Enum

from ncclwatch_server.incidents.book import Incident, IncidentState

NEVER = float("inf")
HOLD_S = 5.0  # a hang that comes back so soon has not ended
UNSURE_S = 130.0  # a stored incident that nobody was told of: its job may have ended while no server ran


class Stage(str, Enum):
    """Which message of an incident this is."""

    FIRING = "firing"
    UPDATED = "updated"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one target has been told of one incident."""

    stage: Stage
    count: int  # messages so far; >= 1
    digest: str  # of what could be seen in the last one
    urgency: int  # of its lateness


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """What is known of one incident at this moment."""

    incident: Incident
    told: Told | None
    settled: bool  # no more stacks are expected
    owed: bool  # it was opened or seen to stand since this server started, and the target does not know
    muted: bool  # by a silence
    known_s: float  # for how long this server has known it
    closed_s: float  # for how long it has been closed; 0 while it is open
    hold_s: float = HOLD_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What to tell now, or else when to look again, if no news comes before."""

    stage: Stage | None = None
    wait_s: float = NEVER


def due(matter: Matter) -> Due:
    """Return what a target should be told."""
    told, incident = matter.told, matter.incident
    if told is None or told.stage is Stage.RESOLVED:
        return _first(matter)
    if not incident.open:
        wait_s = matter.hold_s - matter.closed_s
        return Due(stage=Stage.RESOLVED) if wait_s <= 0 else Due(wait_s=wait_s)
    if matter.muted:
        return Due()
    if incident.verdict.lateness.rank > told.urgency:
        return Due(stage=Stage.UPDATED)
    if matter.settled and told.stage is Stage.FIRING and digest(incident) != told.digest:
        return Due(stage=Stage.UPDATED)
    return Due()


def _first(matter: Matter) -> Due:
    incident = matter.incident
    # Of a job that went on meanwhile nobody needs to hear first; one that has ended of it is news.
    if matter.muted or not (incident.open or (matter.owed and incident.state is IncidentState.ENDED)):
        return Due()
    if not matter.owed and matter.known_s < UNSURE_S:
        return Due(wait_s=UNSURE_S - matter.known_s)
    return Due(stage=Stage.FIRING)


def tell(incident: Incident, stage: Stage, before: Told | None) -> Told:
    """Return what a target has been told once this message has arrived."""
    return Told(
        stage=stage,
        count=before.count + 1 if before is not None else 1,
        digest=digest(incident),
        urgency=incident.verdict.lateness.rank,
    )


def digest(incident: Incident) -> str:
    """Return what changes when an update is worth sending: the verdict's facts and the stacks, not its seconds."""
    verdict = incident.verdict
    said = (verdict.cause.value, verdict.certainty.value, verdict.one_of, verdict.disputed)
    who = tuple((culprit.rank, culprit.host, culprit.call_site) for culprit in verdict.culprits)
    return hashlib.sha256(repr((said, who, incident.stacks)).encode("utf-8", "backslashreplace")).hexdigest()[:16]
