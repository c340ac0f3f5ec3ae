"""Turns what the server knows into rows of a store, and these into incidents and lessons again."""

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import msgspec
from sqlalchemy.engine import Row

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.incidents.book import Incident, JobKey
from ncclwatch_server.incidents.losses import Fate, Loss, loss_of
from ncclwatch_server.incidents.report import IncidentReport, report_incident, revive
from ncclwatch_server.security.audit import AuditEntry
from ncclwatch_server.state.waits.history import Lesson

log = logging.getLogger("ncclwatch.server")

Values = dict[str, str | int | float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A lesson that waits to be written."""

    job: str
    lesson: Lesson
    at: float  # seconds since 1970

    @property
    def kind(self) -> str:
        """The class of waits, in words."""
        kind = self.lesson.kind
        return " / ".join((kind.phase.value, kind.op, str(kind.size), kind.name))[:255]

    @property
    def key(self) -> tuple[str, str]:
        """What there is one row of."""
        return (self.job, self.kind)


def incident_row(incident: Incident) -> Values:
    """Return an incident as its table has it."""
    loss = loss_of(incident)
    return _storable(
        {
            "id": incident.id,
            "job": incident.job[:255],
            "name": incident.key.name[:255],
            "instance": incident.key.instance[:1024],
            "attempt": incident.key.attempt,
            "world_size": incident.world_size,
            "state": incident.state.value,
            "severity": incident.verdict.severity.value,
            "cause": incident.verdict.cause.value,
            "opened_at": incident.opened_at,
            "closed_at": incident.closed_at,
            "body": msgspec.json.encode(report_incident(incident)).decode(),
            "onset_at": loss.onset_at if loss is not None else None,
            "over_at": loss.over_at if loss is not None else None,
            "fate": loss.fate.value if loss is not None else None,
            "gpus": incident.gpus,
            "timeout_s": incident.timeout_s,
        }
    )


def lesson_row(learned: Learned) -> Values:
    """Return a lesson as its table has it."""
    body = msgspec.json.encode(learned.lesson).decode()
    return _storable({"job": learned.job[:255], "kind": learned.kind, "learned_at": learned.at, "body": body})


def audit_row(entry: AuditEntry) -> Values:
    """Return a line of the audit log as its table has it."""
    return _storable(asdict(entry))


def incidents_of(rows: "Iterable[Row[tuple[object, ...]]]") -> tuple[Incident, ...]:
    """Return the incidents of rows, without those that another version wrote and this one cannot read."""
    return tuple(incident for row in rows if (incident := _revive(row)) is not None)


def lessons_of(rows: "Iterable[Row[tuple[object, ...]]]") -> dict[str, list[Lesson]]:
    """Return the lessons of rows, by job, in their order."""
    found: dict[str, list[Lesson]] = {}
    for row in rows:
        try:
            lesson = msgspec.json.decode(str(row.body), type=Lesson)
        except msgspec.DecodeError as error:
            log.warning("a lesson of job %s in the store cannot be read (%s); it is left alone", row.job, error)
            continue
        found.setdefault(str(row.job), []).append(lesson)
    return found


def losses_of(rows: "Iterable[Row[tuple[object, ...]]]") -> tuple[Loss, ...]:
    """Return what counts of hangs, of rows, without causes that this version does not know."""
    known = {cause.value for cause in Cause}
    return tuple(_loss(row) for row in rows if row.cause in known)


def _loss(row: "Row[tuple[object, ...]]") -> Loss:
    return Loss(
        job=str(row.job),
        cause=Cause(row.cause),
        fate=Fate(row.fate),
        onset_at=float(row.onset_at),
        closed_at=None if row.closed_at is None else float(row.closed_at),
        over_at=None if row.over_at is None else float(row.over_at),
        ranks=int(row.world_size),
        gpus=int(row.gpus or 0),
        timeout_s=float(row.timeout_s or 0.0),
    )


def audit_of(rows: "Iterable[Row[tuple[object, ...]]]") -> list[AuditEntry]:
    """Return the lines of the audit log of rows."""
    return [
        AuditEntry(id=str(r.id), at=float(r.at), who=str(r.who), act=str(r.act), job=str(r.job), detail=str(r.detail))
        for r in rows
    ]


def _revive(row: "Row[tuple[object, ...]]") -> Incident | None:
    try:
        report = msgspec.json.decode(str(row.body), type=IncidentReport)
    except msgspec.DecodeError as error:
        log.warning("incident %s in the store cannot be read (%s); it is left alone", row.id, error)
        return None
    key = JobKey(name=str(row.name), instance=str(row.instance), attempt=int(row.attempt))
    return replace(revive(report, key, int(row.world_size)), id=str(row.id))  # it may have another one since


def _storable(values: Values) -> Values:
    """Return values that every database takes: PostgreSQL has no NUL in a text, and nobody a lone surrogate."""
    return {key: storable(value) if isinstance(value, str) else value for key, value in values.items()}


def storable(value: str) -> str:
    """Return a text as a store has it."""
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
