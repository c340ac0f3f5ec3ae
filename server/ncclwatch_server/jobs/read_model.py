"""Copies what a reader needs of a job, in the event loop, in a moment; all the rest is worked out in a thread."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.verdict import Severity
from ncclwatch.contract.wire import Loop
from ncclwatch_server.evidence.rank_labels import GroupName, RankNote
from ncclwatch_server.incidents.book import Incident, JobKey, worst_first
from ncclwatch_server.jobs.job import Job, LaunchFacts, Served
from ncclwatch_server.jobs.outcome import End
from ncclwatch_server.state.picture import Picture


class JobStatus(str, Enum):
    """How a job is doing."""

    RUNNING = "running"
    HUNG = "hung"  # a critical incident is open
    WAITING = "waiting"  # for a rank that works; no hang
    ENDED = "ended"  # over, and judged for the last time


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSight:
    """One job at one moment."""

    id: str
    key: JobKey
    world_size: int
    status: JobStatus
    waiting: tuple[str, ...]  # sentences about late ranks that work
    notices: tuple[str, ...]
    incidents: tuple[Incident, ...]  # open ones of this attempt, the worst first
    served: tuple[tuple[int, Served], ...]  # by number of the connection
    picture: Picture
    silent: frozenset[int]
    notes: Mapping[int, RankNote]
    names: Mapping[int, GroupName]
    loops: tuple[Loop, ...]
    launch_facts: LaunchFacts
    end: End

    @property
    def title(self) -> str:
        """What people call it: its name, or its batch job or script where the name is only where its ranks meet."""
        return self.launch_facts.title or self.id

    @property
    def steps(self) -> int:
        """The furthest rank's optimizer steps."""
        return int(self.picture.ranks["steps"].max(initial=0))

    @property
    def blamed(self) -> frozenset[int]:
        """The ranks that open incidents name as culprits."""
        return frozenset(culprit.rank for incident in self.incidents for culprit in incident.verdict.culprits)

    def quiet_s(self, number: int) -> float:
        """Return for how long a connection has said nothing."""
        return round(self.picture.heard_ago_s(number), 1)


def status_of(job: Job, opened: Iterable[Incident]) -> JobStatus:
    """Return how a job with these open incidents is doing."""
    if job.ended:
        return JobStatus.ENDED
    if any(incident.verdict.severity is Severity.CRITICAL for incident in opened):
        return JobStatus.HUNG
    return JobStatus.WAITING if job.waiting else JobStatus.RUNNING


def sight_of(job: Job, opened: tuple[Incident, ...], now: float) -> JobSight:
    """Copy what readers need of a job with these open incidents. In the event loop only."""
    return JobSight(
        id=job.id,
        key=job.key,
        world_size=job.world_size,
        status=status_of(job, opened),
        waiting=tuple(verdict.summary for verdict in job.waiting),
        notices=(*job.notices, unheard) if (unheard := job.unheard_nodes(now)) else job.notices,
        incidents=worst_first(opened),
        served=tuple(job.served.items()),
        picture=job.state.picture(now),
        silent=frozenset(job.suspicion.silent),
        notes=dict(job.showing.notes),
        names=dict(job.showing.names),
        loops=job.loops.all(),
        launch_facts=job.launch_facts,
        end=job.end,
    )


def sights_of(jobs: Iterable[Job], opened: Mapping[JobKey, Iterable[Incident]], now: float) -> tuple[JobSight, ...]:
    """Copy what readers need of several jobs, with the open incidents of each. In the event loop only."""
    return tuple(sight_of(job, tuple(opened.get(job.key, ())), now) for job in jobs)
