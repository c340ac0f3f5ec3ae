"""What the API says about single ranks and groups of a job. Made of one sight of it, in a thread."""

from dataclasses import dataclass

import numpy as np

from ncclwatch.contract.digests import WAIT_KINDS
from ncclwatch_server.jobs.group_progress import Frontier, frontier
from ncclwatch_server.jobs.rank_states import RankState, states_of
from ncclwatch_server.jobs.read_model import JobSight

LIMIT = 500
LIMIT_MAX = 2000
GROUPS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank, by its node's last digest."""

    rank: int
    state: str  # absent, ended, moving, working, waiting, long-waiting, detached, silent, frozen, lost, blamed
    host: str  # "" if nobody speaks for it
    wait_s: float  # in what only peers can end; 0: it waits for nobody
    waits_in: str  # collective, recv, store...; "" if it waits for nobody
    issued: int
    completed: int
    steps: int
    pulse_age_s: float
    phase: str  # "" if it named none, or nobody has looked
    at: str  # "train.py:88 in step()", "" if nobody has looked


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPage:
    """Some ranks of a job, in their order."""

    job: str
    world_size: int
    ranks: tuple[RankRow, ...]
    next: int | None  # the first rank of the next page


def ranks_of(sight: JobSight, first: int, limit: int) -> RankPage:
    """Return so many ranks from one on."""
    picture = sight.picture
    states = states_of(picture, silent=sight.silent, blamed=sight.blamed)
    hosts = {number: served.link.host for number, served in sight.served}
    end = min(sight.world_size, first + limit)
    rows = np.flatnonzero(picture.reporting & (picture.row_rank >= first) & (picture.row_rank < end))
    row_of = {int(picture.row_rank[row]): picture.ranks[row] for row in rows.tolist()}
    found = []
    for rank in range(first, end):
        row, note = row_of.get(rank), sight.notes.get(rank)
        kind = int(row["wait_kind"]) if row is not None else -1
        found.append(
            RankRow(
                rank=rank,
                state=RankState(int(states[rank])).slug,
                host=hosts.get(int(picture.owner[rank]), ""),
                wait_s=_finite(row["wait_age_s"]) if row is not None else 0.0,
                waits_in=WAIT_KINDS[kind].value if 0 <= kind < len(WAIT_KINDS) else "",
                issued=int(row["issued"]) if row is not None else 0,
                completed=int(row["completed"]) if row is not None else 0,
                steps=int(row["steps"]) if row is not None else 0,
                pulse_age_s=_finite(row["pulse_age_s"]) if row is not None else 0.0,
                phase=note.phase if note is not None else "",
                at=str(note.at) if note is not None and note.at is not None else "",
            )
        )
    return RankPage(
        job=sight.id, world_size=sight.world_size, ranks=tuple(found), next=end if end < sight.world_size else None
    )


def groups_of(sight: JobSight, limit: int) -> Frontier:
    """Return how far the groups of a job have come."""
    return frontier(sight.picture, sight.names, limit)


def _finite(value: float) -> float:
    """JSON knows neither infinity nor NaN, and an agent may send them."""
    return round(float(value), 2) if np.isfinite(value) else 0.0
