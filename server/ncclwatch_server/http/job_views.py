"""What the API says about a job: plain values, made of what was copied of it."""

from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from ncclwatch_server.jobs.outcome import Outcome
from ncclwatch_server.jobs.read_model import JobSight, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One agent and its ranks."""

    host: str
    ranks: tuple[int, ...]
    connected: bool
    quiet_s: float  # since it last spoke
    version: str
    clock_ahead_s: float | None = None  # of this server's, when it connected; None: it did not say


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
    title: str = ""  # what people call it: its name, or its batch job or script where nobody has named it
    command: str = ""  # the script and its arguments, without secrets
    user: str = ""
    labels: str = ""  # "team=vision,run=42", as NCCLWATCH_LABELS has them
    first_seen_at: str = ""  # ISO 8601, UTC
    outcome: Outcome | None = None  # of a job that is over
    outcome_sentence: str = ""


def view_of(sight: JobSight) -> JobView:
    """Return what there is to say about a job."""
    return JobView(
        id=sight.id,
        name=sight.key.name,
        attempt=sight.key.attempt,
        state=sight.status,
        world_size=sight.world_size,
        ranks_seen=int(sight.picture.seen.sum()),
        ranks_ended=int(sight.picture.ended.sum()),
        steps=sight.steps,
        waiting=sight.waiting,
        notices=sight.notices,
        open_incidents=tuple(incident.id for incident in sight.incidents),
        nodes=nodes_of(sight),
        title=sight.title,
        command=sight.launch_facts.command,
        user=sight.launch_facts.user,
        labels=sight.launch_facts.labels,
        first_seen_at=_iso(sight.launch_facts.at),
        outcome=sight.end.outcome if sight.status is JobStatus.ENDED else None,
        outcome_sentence=sight.end.sentence,
    )


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds") if at else ""


def nodes_of(sight: JobSight) -> tuple[NodeView, ...]:
    """Return the connections that speak for ranks of a job, in the order in which they came."""
    order = np.argsort(sight.picture.owner, kind="stable")
    numbers = sight.picture.owner[order]
    found = []
    for number, served in sorted(sight.served, key=lambda item: item[0]):
        first, last = np.searchsorted(numbers, number), np.searchsorted(numbers, number, "right")
        if first == last:
            continue
        found.append(
            NodeView(
                host=served.link.host,
                ranks=tuple(order[first:last].tolist()),
                connected=not served.lost,
                quiet_s=sight.quiet_s(number),
                version=served.link.version,
                clock_ahead_s=None if served.link.ahead_s is None else round(served.link.ahead_s, 3),
            )
        )
    return tuple(found)
