"""The report on a job and its incidents as machines read it: the same from the API, a webhook and the store.

The shapes here are what the API sends, what the store keeps and what `ncclwatch run --report`
writes. A field is added, never renamed or given another meaning, while `schema` stays 1.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from ncclwatch.contract.model.slowness import Slowness
from ncclwatch.contract.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Divergence,
    Evidence,
    Excerpt,
    Lateness,
    MergedStack,
    Repair,
    Severity,
    Verdict,
    Waiters,
)
from ncclwatch.contract.stacks.tree import gang_line
from ncclwatch_server.evidence.stack_collection import main_tree, where
from ncclwatch_server.incidents.aftermath import lost_s
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentReport:
    """One incident, as machines read it."""

    id: str
    job: str
    state: IncidentState
    cause: Cause
    certainty: Certainty
    severity: Severity
    summary: str
    explanation: str
    advice: str
    culprits: tuple[Culprit, ...]
    one_of: bool  # the evidence does not decide between the culprits
    predicted: bool = False  # nothing hung when it was told
    disputed: bool = False  # torch's Flight Recorder or NCCL's RAS says otherwise
    victims: tuple[int, ...]
    group: str
    seq: int
    op: str
    first_divergence: Divergence | None
    onset_to_open_s: float
    explains: tuple[int, int]  # (blocked ranks this explains, blocked ranks in all)
    evidence: tuple[Evidence, ...]
    stacks: tuple[MergedStack, ...]
    opened_at: str  # ISO 8601, UTC
    closed_at: str | None
    lateness: Lateness = Lateness.NONE  # of a wait for ranks that work
    where: str = ""  # by the stacks: "3 in validate train.py:88; 0-2,4-7 in backward train.py:55", the odd ones first
    stack_tree: tuple[str, ...] = ()  # the main threads merged by their common beginnings, lines of text
    waiters: tuple[Waiters, ...] = ()  # who waits for whom, when it was told (bounded)
    excerpts: tuple[Excerpt, ...] = ()  # the user's source around the culprit's line and those of the ranks that wait
    repairs: tuple[Repair, ...] = ()  # the smallest change to what one rank did after which all would have gone on
    slowness: Slowness | None = None  # of a job that goes on, only slower: why, how much, since when, what it costs
    user: str = ""  # whose job it is, as its environment says
    labels: str = ""  # of the job: "team=vision,run=42"
    recovered_after_s: float | None = None  # from its onset until the job, started again, went on; null: unknown
    came_back_as: str = ""  # id of the same hang in a later attempt of the job
    came_back_from: str = ""  # and in an earlier one
    world_size: int = 0  # ranks of the job
    saved: bool = False  # whether a rank had saved anything when it was opened, since this attempt began
    gpus: int = 0  # of them, those that had a GPU of their own
    timeout_s: float = 0.0  # after which the group that waits would have ended the job; 0: unknown
    group_title: str = ""  # as sentences call the group: "the default group"; "": only its name is known
    lost_s: float | None = None  # from its onset until the job went on or ended; null: no hang, open, or unknown
    end_seen: bool = True  # false: it ended while no server ran, and nobody knows when


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job and its incidents, the oldest first."""

    schema: int
    job: str
    world_size: int
    incidents: tuple[IncidentReport, ...]


def report_job(job: str, world_size: int, incidents: Iterable[Incident]) -> JobReport:
    """Return the report on a job."""
    ordered = sorted(incidents, key=lambda incident: (incident.opened_at, incident.id))
    return JobReport(
        schema=SCHEMA, job=job, world_size=world_size, incidents=tuple(report_incident(i) for i in ordered)
    )


def report_incident(incident: Incident) -> IncidentReport:
    """Return the report on one incident."""
    verdict = incident.verdict
    # Why a stack is missing is a fact like any other.
    unseen = tuple(Evidence(source="py-spy", rank=rank, fact=failure) for rank, failure in incident.unseen)
    lost = None if incident.open else lost_s(incident, 0.0)
    return IncidentReport(
        id=incident.id,
        job=incident.job,
        state=incident.state,
        cause=verdict.cause,
        certainty=verdict.certainty,
        severity=verdict.severity,
        summary=verdict.summary,
        explanation=verdict.explanation,
        advice=verdict.advice,
        culprits=verdict.culprits,
        one_of=verdict.one_of,
        predicted=verdict.predicted,
        disputed=verdict.disputed,
        victims=verdict.victims,
        group=verdict.group,
        group_title=verdict.group_title,
        seq=verdict.seq,
        op=verdict.op,
        first_divergence=verdict.first_divergence,
        onset_to_open_s=_finite(incident.onset_to_open_s),
        explains=verdict.explained,
        evidence=verdict.evidence + tuple(e for e in unseen if e not in verdict.evidence),
        stacks=incident.stacks,
        opened_at=_iso(incident.opened_at),
        closed_at=None if incident.closed_at is None else _iso(incident.closed_at),
        lateness=verdict.lateness,
        where=gang_line(where(incident.stacks)),
        stack_tree=main_tree(incident.stacks),
        waiters=verdict.waiters,
        excerpts=verdict.excerpts,
        repairs=verdict.repairs,
        slowness=verdict.slowness,
        user=incident.user,
        labels=incident.labels,
        recovered_after_s=None if incident.recovered_after_s is None else _finite(incident.recovered_after_s),
        came_back_as=incident.came_back_as,
        came_back_from=incident.came_back_from,
        world_size=incident.world_size,
        saved=incident.saved,
        gpus=incident.gpus,
        timeout_s=_finite(incident.timeout_s),
        lost_s=None if lost is None else _finite(lost),
        end_seen=incident.end_seen,
    )


def revive(report: IncidentReport, key: JobKey, world_size: int) -> Incident:
    """Return the incident that a stored report was made of."""
    verdict = Verdict(
        cause=report.cause,
        certainty=report.certainty,
        severity=report.severity,
        summary=report.summary,
        explanation=report.explanation,
        advice=report.advice,
        culprits=report.culprits,
        victims=report.victims,
        one_of=report.one_of,
        predicted=report.predicted,
        disputed=report.disputed,
        group=report.group,
        group_title=report.group_title,
        seq=report.seq,
        op=report.op,
        onset_s=report.onset_to_open_s,
        explained=report.explains,
        first_divergence=report.first_divergence,
        evidence=report.evidence,
        lateness=report.lateness,
        waiters=report.waiters,
        excerpts=report.excerpts,
        repairs=report.repairs,
        slowness=report.slowness,
    )
    return Incident(
        id=report.id,
        key=key,
        job=report.job,
        world_size=world_size,
        state=report.state,
        verdict=verdict,
        onset_to_open_s=report.onset_to_open_s,
        opened_at=_seconds(report.opened_at),
        closed_at=None if report.closed_at is None else _seconds(report.closed_at),
        stacks=report.stacks,
        user=report.user,
        labels=report.labels,
        recovered_after_s=report.recovered_after_s,
        came_back_as=report.came_back_as,
        came_back_from=report.came_back_from,
        saved=report.saved,
        gpus=report.gpus,
        timeout_s=report.timeout_s,
        end_seen=report.end_seen,
    )


def _finite(value: float) -> float:
    """JSON knows neither infinity nor NaN."""
    return round(value, 3) if math.isfinite(value) else 0.0


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")


def _seconds(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()
