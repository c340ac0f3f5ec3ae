"""Renders what `ncclwatch analyze` answers: the report that the API gives, or the terminal block."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from ncclwatch.contract.model.job import JobSnapshot
from ncclwatch.contract.model.verdict import Cause, Severity, Verdict
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.evidence.stack_collection import merge
from ncclwatch_server.incidents import terminal_text
from ncclwatch_server.incidents.book import Incident, IncidentState, JobKey, fingerprint
from ncclwatch_server.incidents.capture_file import Capture
from ncclwatch_server.incidents.report import IncidentReport, JobReport, report_job, revive
from ncclwatch_server.offline.gather import Gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A job report, and what should be known of how it came about."""

    schema: int
    job: str
    world_size: int
    incidents: tuple[IncidentReport, ...]
    ranks: tuple[int, ...]  # with a file
    files: int
    notes: tuple[str, ...]


def incidents_of(
    job: str, snapshot: JobSnapshot, verdicts: Iterable[Verdict], reports: Iterable[JobReport]
) -> tuple[Incident, ...]:
    """Return the incidents that verdicts make, after those that a live ncclwatch had found: it saw more."""
    saved = [each for report in reports for each in _saved(report)]
    known = {culprit.rank for incident in saved for culprit in incident.verdict.culprits}
    made = [
        _made(job, snapshot, verdict, time.time())
        for verdict in verdicts
        if not verdict.culprits or not {culprit.rank for culprit in verdict.culprits} <= known
    ]
    return (*saved, *made)


def incidents_of_capture(capture: Capture, snapshot: JobSnapshot, verdicts: Iterable[Verdict]) -> tuple[Incident, ...]:
    """Return the incidents of a capture, and what this version says that they do not."""
    saved = _saved(capture.report)
    known = {_said(each.verdict) for each in saved if each.open}
    alarms = (verdict for verdict in verdicts if verdict.severity is not Severity.INFO)
    made = [
        _made(snapshot.job, snapshot, verdict, capture.taken_at) for verdict in alarms if _said(verdict) not in known
    ]
    return (*saved, *made)


def _said(verdict: Verdict) -> tuple[Cause, frozenset[int]]:
    return verdict.cause, frozenset(culprit.rank for culprit in verdict.culprits)


def _saved(report: JobReport) -> list[Incident]:
    key = JobKey(name=report.job, instance="", attempt=0)
    return [revive(each, key, report.world_size) for each in report.incidents]


def _made(job: str, snapshot: JobSnapshot, verdict: Verdict, opened_at: float) -> Incident:
    key = JobKey(name=job, instance="", attempt=0)
    return Incident(
        id=fingerprint(key, verdict),
        key=key,
        job=job,
        world_size=snapshot.world_size,
        state=IncidentState.ENDED,
        verdict=verdict,
        onset_to_open_s=verdict.onset_s,
        opened_at=opened_at,
        stacks=merge(snapshot.stacks, verdict),
    )


def answer(job: str, snapshot: JobSnapshot, gathered: Gathered, incidents: tuple[Incident, ...]) -> Answer:
    """Return the answer for machines."""
    report = report_job(job, snapshot.world_size, incidents)
    return Answer(
        schema=report.schema,
        job=report.job,
        world_size=report.world_size,
        incidents=report.incidents,
        ranks=_with_records(snapshot) if gathered.capture is None else tuple(sorted(snapshot.ranks)),
        files=gathered.files,
        notes=notes_of(snapshot, gathered),
    )


def notes_of(snapshot: JobSnapshot, gathered: Gathered) -> tuple[str, ...]:
    """Return what limits the verdict."""
    notes = list(gathered.notes)
    if gathered.notes_left_out:
        notes.append(f"and {gathered.notes_left_out} more notes on files")
    if gathered.capture is not None:
        if gathered.beside_the_capture:
            others = gathered.beside_the_capture
            notes.append(f"the capture is judged alone; leave it out to judge the other files (here: {others})")
        return (*notes, *gathered.capture.notes)
    known = set(_with_records(snapshot))
    lost = [rank for rank in range(snapshot.world_size) if rank not in known]
    if lost and known:
        notes.append(f"no file of {ranks_words(lost)}: nothing is concluded from their absence")
    cut = [rank for rank, view in snapshot.ranks.items() if rank in known and view.file and not view.file.whole]
    if cut:
        notes.append(f"the buffer of {ranks_words(cut)} had lost its older entries")
    return tuple(notes)


def lines(snapshot: JobSnapshot, gathered: Gathered, incidents: tuple[Incident, ...]) -> Iterator[str]:
    """Yield the answer for people."""
    if not incidents:
        yield _nothing_wrong(snapshot, gathered)
    for number, incident in enumerate(incidents):
        if number:
            yield ""
        yield from terminal_text.lines_of(incident)
    for note in notes_of(snapshot, gathered):
        yield f"  note      {note}"


def _nothing_wrong(snapshot: JobSnapshot, gathered: Gathered) -> str:
    if gathered.capture is not None:
        moment = datetime.fromtimestamp(gathered.capture.taken_at, timezone.utc).isoformat(timespec="seconds")
        return f"ncclwatch: nothing was wrong with job {snapshot.job} at {moment}: its capture shows no hang."
    known = len(_with_records(snapshot))
    if gathered.reports and not known:
        return "ncclwatch: nothing was wrong: the saved report holds no incident."
    if not known:
        return "ncclwatch: no hang is to be seen: there are stacks or logs, but nothing that tells who waits for whom."
    ranks = f"{known} rank{'s' if known != 1 else ''}"
    return f"ncclwatch: nothing is wrong in the records of {ranks}: no hang is to be seen."


def _with_records(snapshot: JobSnapshot) -> tuple[int, ...]:
    """Return the ranks of which a file tells the operations."""
    return tuple(sorted(rank for rank, view in snapshot.ranks.items() if view.file is not None and view.file.path))
