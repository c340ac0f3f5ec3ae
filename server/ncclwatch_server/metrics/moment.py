"""Copies, in the event loop, what a thread makes figures of: tables, and references to values.

That takes well below a millisecond for 16,384 ranks; the tables themselves, megabytes of them, the thread copies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.jobs.job import Job, Served
from ncclwatch_server.jobs.read_model import JobStatus, status_of
from ncclwatch_server.state.picture import Picture
from ncclwatch_server.watch.counters import Counters
from ncclwatch_server.watch.tick import Watch


class Losses(Protocol):
    """What a store has to say about itself."""

    failures: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMoment:
    """One job at one moment."""

    id: str
    name: str
    attempt: int
    status: JobStatus
    user: str
    labels: str
    world_size: int
    hung_s: float  # for how long critical incidents of it have been open
    completed: int  # collectives of all ranks together since the server knows the job
    picture: Picture
    served: Mapping[int, Served]
    unheard: frozenset[int]
    incidents: tuple[Incident, ...]  # the open ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The server at one moment."""

    wall: float  # seconds since 1970
    agents: int
    jobs: tuple[JobMoment, ...]
    counters: Counters  # running totals: whole numbers, which a thread may read while they grow
    store_failures: int
    not_stored: int
    not_opened: int


def take(watch: Watch, losses: Losses, now: float, wall: float) -> Moment:
    """Copy this moment. To be called in the event loop. `now` is on the watch's clock, `wall` in seconds since 1970."""
    standing = watch.book.open_by_job()
    return Moment(
        wall=wall,
        agents=watch.agents,
        jobs=tuple(_job(job, tuple(standing.get(job.key, ())), now) for job in watch.jobs.listed()),
        counters=watch.counters,
        store_failures=losses.failures,
        not_stored=losses.dropped,
        not_opened=watch.book.refused,
    )


def _job(job: Job, incidents: tuple[Incident, ...], now: float) -> JobMoment:
    return JobMoment(
        id=job.id,
        name=job.key.name,
        attempt=job.key.attempt,
        status=status_of(job, incidents),
        user=job.launch_facts.user,
        labels=job.launch_facts.labels,
        world_size=job.world_size,
        hung_s=job.hung_s,
        completed=job.state.completed,
        picture=job.state.picture(now),
        served=dict(job.served),
        unheard=job.suspicion.unheard,
        incidents=incidents,
    )


def hosts_of(job: JobMoment) -> NDArray[np.object_]:
    """Return the host of each rank, "" where nobody has spoken for it."""
    numbers = job.picture.owner
    known = {number: served.link.host for number, served in job.served.items()}
    distinct, place = np.unique(numbers, return_inverse=True)
    names = np.array([known.get(int(number), "") for number in distinct], dtype=object)
    found: NDArray[np.object_] = names[place.reshape(-1)]
    return found
