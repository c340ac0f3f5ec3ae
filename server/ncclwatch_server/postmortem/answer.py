"""What does `ncclwatch analyze` answer? The report of DESIGN.md section 5, or the terminal block."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from ncclwatch.contract.model import Verdict
from ncclwatch.contract.text import ranks_words
from ncclwatch_server import terminal
from ncclwatch_server.incidents import Incident, IncidentState, JobKey, fingerprint
from ncclwatch_server.postmortem.gather import Gathered
from ncclwatch_server.postmortem.matter import Matter
from ncclwatch_server.report import IncidentReport, report_job


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


def incidents_of(job: str, matter: Matter, verdicts: Iterable[Verdict]) -> tuple[Incident, ...]:
    """Return the incidents that verdicts make."""
    key = JobKey(name=job, instance="", attempt=0)
    return tuple(
        Incident(
            id=fingerprint(key, verdict),
            key=key,
            job=job,
            world_size=len(matter.world),
            state=IncidentState.ENDED,
            verdict=verdict,
            onset_to_open_s=verdict.onset_s,
            opened_at=time.time(),
        )
        for verdict in verdicts
    )


def answer(job: str, matter: Matter, gathered: Gathered, incidents: tuple[Incident, ...]) -> Answer:
    """Return the answer for machines."""
    report = report_job(job, len(matter.world), incidents)
    return Answer(
        schema=report.schema,
        job=report.job,
        world_size=report.world_size,
        incidents=report.incidents,
        ranks=tuple(sorted(matter.recordings)),
        files=gathered.files,
        notes=notes_of(matter, gathered),
    )


def notes_of(matter: Matter, gathered: Gathered) -> tuple[str, ...]:
    """Return what limits the verdict."""
    notes = list(gathered.notes)
    if gathered.notes_left_out:
        notes.append(f"and {gathered.notes_left_out} more notes on files")
    lost = [rank for rank in matter.world if rank not in matter.recordings]
    if lost:
        notes.append(f"no file of {ranks_words(lost)}: nothing is concluded from their absence")
    cut = [rank for rank, recording in matter.recordings.items() if not recording.whole]
    if cut:
        notes.append(f"the buffer of {ranks_words(cut)} had lost its older entries")
    return tuple(notes)


def text(matter: Matter, gathered: Gathered, incidents: tuple[Incident, ...]) -> str:
    """Return the answer for people."""
    blocks = [terminal.render(incident) for incident in incidents]
    if not blocks:
        known = len(matter.recordings)
        blocks = [f"ncclwatch: nothing is wrong in the records of {known} rank{'s' if known != 1 else ''}: "
                  "no rank waits for another.\n"]  # fmt: skip
    notes = "".join(f"  note      {terminal.plain(note)}\n" for note in notes_of(matter, gathered))
    return "\n".join(blocks) + notes
