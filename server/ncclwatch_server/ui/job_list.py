"""Chooses and orders the rows of the page of jobs. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ncclwatch_server.jobs.outcome import Outcome
from ncclwatch_server.jobs.read_model import JobSight, JobStatus

ROWS_MAX = 200
# What a job can be, to choose by. "hung" is one that hangs and one that ended while it did.
WORDS = tuple(dict.fromkeys((*(state.value for state in JobStatus), *(outcome.value for outcome in Outcome))))
_URGENCY = (JobStatus.HUNG, JobStatus.WAITING, JobStatus.RUNNING, JobStatus.ENDED)


class Sort(str, Enum):
    """By what jobs are ordered."""

    URGENCY = "worst first"
    STARTED = "newest first"
    NAME = "name"
    RANKS = "most ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which jobs somebody wants to see, and in which order."""

    text: str = ""  # part of a name, title, user, label, command or host, in any case
    word: str = ""  # state, or of jobs that are over how they ended: one of WORDS
    sort: Sort = Sort.URGENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job of the list."""

    sight: JobSight
    steps_per_s: float
    word: str  # its state, or of one that is over how it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """The rows of the page, and how many jobs there are beside them."""

    rows: tuple[JobRow, ...]
    more: int  # that were chosen, and found no room
    total: int  # jobs on this server


def job_list(sights: Iterable[JobSight], rates: Mapping[str, float], chosen: Chosen) -> JobList:
    """Return the jobs that are wanted, in the wanted order. `rates` are steps a second by the id of a job."""
    every = tuple(sights)
    found = sorted((sight for sight in every if _wanted(sight, chosen)), key=_ORDERS[chosen.sort])
    rows = tuple(
        JobRow(sight=sight, steps_per_s=rates.get(sight.id, 0.0), word=word_of(sight)) for sight in found[:ROWS_MAX]
    )
    return JobList(rows=rows, more=len(found) - len(rows), total=len(every))


def word_of(sight: JobSight) -> str:
    """Return the state of a job in a word: of one that is over, how it ended."""
    return sight.end.outcome.value if sight.status is JobStatus.ENDED else sight.status.value


def _wanted(sight: JobSight, chosen: Chosen) -> bool:
    if chosen.word not in ("", word_of(sight)):
        return False
    if not chosen.text:
        return True
    facts = sight.launch_facts
    hosts = (served.link.host for _, served in sight.served)
    return any(
        chosen.text.lower() in text.lower()
        for text in (sight.id, sight.title, facts.user, facts.labels, facts.command, *hosts)
    )


_ORDERS: dict[Sort, Callable[[JobSight], tuple[float | str, ...]]] = {
    Sort.URGENCY: lambda sight: (_URGENCY.index(sight.status), -sight.launch_facts.at, sight.id),
    Sort.STARTED: lambda sight: (-sight.launch_facts.at, sight.id),
    Sort.NAME: lambda sight: (sight.title, sight.id),
    Sort.RANKS: lambda sight: (-sight.world_size, sight.id),
}
