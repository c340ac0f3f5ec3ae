"""What does the API say about a job? Plain values, made of the live state when somebody asks."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model import Severity
from ncclwatch_server.incidents import Incident, IncidentBook
from ncclwatch_server.jobs import Job, Served


class JobStatus(str, Enum):
    """How a job is doing."""

    RUNNING = "running"
    HUNG = "hung"  # a critical incident is open
    WAITING = "waiting"  # for a rank that works; no hang
    ENDED = "ended"  # over, and judged for the last time


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One agent and its ranks."""

    host: str
    ranks: tuple[int, ...]
    connected: bool
    quiet_s: float  # since it last spoke
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job, as it is now."""

    id: str
    name: str
    attempt: int
    state: JobStatus
    world_size: int
    ranks_seen: int
    ranks_ended: int
    steps: int  # of the rank that is furthest
    waiting: tuple[str, ...]  # sentences about late ranks that work
    notices: tuple[str, ...]
    open_incidents: tuple[str, ...]  # ids
    nodes: tuple[NodeView, ...]


def view_job(job: Job, book: IncidentBook, now: float) -> JobView:
    """Return what there is to say about a job."""
    return JobView(
        id=job.id,
        name=job.key.name,
        attempt=job.key.attempt,
        state=JobStatus(job_state(job, book)),
        world_size=job.world_size,
        ranks_seen=int(job.state.seen.sum()),
        ranks_ended=int(job.state.ended.sum()),
        steps=job.state.steps,
        waiting=tuple(verdict.summary for verdict in job.waiting),
        notices=job.notices,
        open_incidents=tuple(incident.id for incident in book.open_of(job.key)),
        nodes=tuple(_node(job, served, now) for _, served in sorted(job.served.items())),
    )


def job_state(job: Job, book: IncidentBook) -> str:
    """Return how a job is doing, in one word."""
    return state_with(job, book.open_of(job.key))


def state_with(job: Job, open_incidents: Iterable[Incident]) -> str:
    """Return how a job with these open incidents is doing."""
    if job.ended:
        return JobStatus.ENDED.value
    if any(incident.verdict.severity is Severity.CRITICAL for incident in open_incidents):
        return JobStatus.HUNG.value
    return JobStatus.WAITING.value if job.waiting else JobStatus.RUNNING.value


def _node(job: Job, served: Served, now: float) -> NodeView:
    return NodeView(
        host=served.link.host,
        ranks=job.state.ranks_of(served.link.number),
        connected=not served.lost,
        quiet_s=round(job.state.heard_ago_s(served.link.number, now), 1),
        version=served.link.version,
    )
