"""Says in a few numbers how the ranks of one job stand. Pure, numpy over the copied tables.

What is said of groups is bounded: of a job with thousands of them the default group is shown, and while an incident
is open those that have waited longest. The labels of a group are its name and the lowest of its ranks that report: of
several groups of one name (`contract.groups`) each has another. The name is torch's where that is a number, which is
what its key can be turned back into; the others go by the key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract import digests
from ncclwatch.contract.groups import name_key
from ncclwatch.contract.model.rank import ProcessState
from ncclwatch_server import limits
from ncclwatch_server.metrics.moment import JobMoment
from ncclwatch_server.state.group_index import Topology
from ncclwatch_server.state.picture import Picture

GROUPS_SHOWN_MAX = 32  # of one job
WAIT_BOUNDS_S = (1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
LAG_BOUNDS = (0.0, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
_DEFAULT_GROUP = "0"
_STATE_CODES = {state: code for code, state in enumerate(digests.PROCESS_STATES)}

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class RankState(IntEnum):
    """How a rank stands. Each rank is in one of these; the worse, the higher."""

    RUNNING = 0
    WAITING = 1  # for peers, and still
    ENDED = 2
    UNSEEN = 3  # no agent has spoken of it yet
    DISK_WAIT = 4
    STOPPED = 5
    SILENT = 6  # its node says nothing any more
    DETACHED = 7  # it wants no judgement, or its pulse has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How many ranks lie at or below each bound; the last one counts all."""

    counts: tuple[int, ...]
    total: float

    @classmethod
    def of(cls, values: NDArray[np.float64], bounds: Sequence[float]) -> "Spread":
        """Count values by their bounds."""
        place = np.searchsorted(np.asarray(bounds), values, "left")
        counts = np.cumsum(np.bincount(place, minlength=len(bounds) + 1))
        return cls(counts=tuple(counts.tolist()), total=float(values.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """One process group."""

    name: str
    first_rank: int  # the lowest of its members that report
    lag: int  # issued collectives between its first and its last member
    completed: int  # by the member that is furthest
    inflight_s: float  # of the oldest unfinished operation; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """All ranks of a job, one value for each."""

    state: Numbers
    wait_s: NDArray[np.float64]  # 0: none that only peers can end
    lag: Numbers  # collectives behind the first member of one of its groups
    steps: Numbers
    completed: Numbers
    pulse_age_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """One job, in numbers."""

    ranks: tuple[tuple[RankState, int], ...]
    hosts: tuple[tuple[str, int], ...]  # connected, quiet, lost
    step: int
    progress_ago_s: float  # since any rank issued or completed something; infinity: never yet
    longest_wait_s: float
    group_count: int
    lag: int  # the greatest of all groups
    wait_spread: Spread
    lag_spread: Spread
    groups: tuple[GroupFigures, ...]  # at most GROUPS_SHOWN_MAX
    digest_age_s: float  # of the connected node that was heard longest ago


def summarise(job: JobMoment) -> JobFigures:
    """Return the figures of a job."""
    picture, groups = job.picture, Groups(job.picture)
    ranks = rank_figures(job, groups)
    states = np.bincount(ranks.state, minlength=len(RankState)).tolist()
    waits = np.where(ranks.state == RankState.WAITING, ranks.wait_s, 0.0)
    hosts, digest_age_s = _hosts(job)
    return JobFigures(
        ranks=tuple((state, states[state]) for state in RankState),
        hosts=hosts,
        step=int(ranks.steps.max(initial=0)),
        progress_ago_s=float(picture.moved_ago_s.min(initial=np.inf)),
        longest_wait_s=float(waits.max(initial=0.0)),
        group_count=groups.count,
        lag=int(groups.lag.max(initial=0)),
        wait_spread=Spread.of(waits, WAIT_BOUNDS_S),
        lag_spread=Spread.of(ranks.lag.astype(np.float64), LAG_BOUNDS),
        groups=groups.shown(urgent=bool(job.incidents)),
        digest_age_s=digest_age_s,
    )


def rank_figures(job: JobMoment, groups: "Groups") -> RankFigures:
    """Return how each rank of a job stands."""
    picture = job.picture
    rows, at = picture.ranks[picture.reporting], picture.row_rank[picture.reporting]
    wait_s, pulse_s = np.zeros(job.world_size), np.zeros(job.world_size)
    steps, completed = np.zeros(job.world_size, np.int64), np.zeros(job.world_size, np.int64)
    process = np.full(job.world_size, -1, np.int64)
    detached = at[rows["detached"] != 0]
    wait_s[at], pulse_s[at] = rows["wait_age_s"], rows["pulse_age_s"]
    steps[at], completed[at] = rows["steps"], rows["completed"]
    process[at] = rows["state"]
    return RankFigures(
        state=_states(job, process, wait_s, detached),
        wait_s=wait_s,
        lag=groups.lag_of_ranks(job.world_size),
        steps=steps,
        completed=completed,
        pulse_age_s=pulse_s,
    )


def _states(job: JobMoment, process: Numbers, wait_s: NDArray[np.float64], detached: Numbers) -> Numbers:
    picture = job.picture
    states = np.full(job.world_size, int(RankState.RUNNING), np.int64)
    states[(wait_s > limits.WAIT_S) & (picture.moved_ago_s > limits.STILL_S)] = RankState.WAITING
    states[process == _STATE_CODES[ProcessState.DISK_WAIT]] = RankState.DISK_WAIT
    halted = [_STATE_CODES[ProcessState.STOPPED], _STATE_CODES[ProcessState.TRACED]]
    states[np.isin(process, halted)] = RankState.STOPPED
    states[list(job.unheard)] = RankState.SILENT
    states[detached] = RankState.DETACHED
    states[picture.ended] = RankState.ENDED
    states[~picture.seen] = RankState.UNSEEN
    return states


class Groups:
    """The groups of one job, each with its first and its last member."""

    def __init__(self, picture: Picture) -> None:
        rows = picture.groups.copy()
        known = picture.topology
        self._topology = known if known is not None and known.fits(rows) else Topology.of(rows)
        self.count = self._topology.groups
        if not self.count:
            self.lag = self._front = self._completed = np.zeros(0, np.int64)
            self._inflight_s = np.zeros(0)
            return
        order, starts = self._topology.order, self._topology.starts[:-1]
        self._rank, self._enqueued = picture.group_rank, rows["enqueued"].astype(np.int64)
        enqueued = self._enqueued[order]
        self._front = np.maximum.reduceat(enqueued, starts)
        self.lag = self._front - np.minimum.reduceat(enqueued, starts)
        completed = self._enqueued - np.minimum(self._enqueued, rows["unfinished"])
        self._completed = np.maximum.reduceat(completed[order], starts)
        self._inflight_s = np.maximum.reduceat(rows["pending_age_s"].astype(np.float64)[order], starts)

    def lag_of_ranks(self, world_size: int) -> Numbers:
        """Return how far each rank is behind in the group in which it is behind most."""
        found = np.zeros(world_size, np.int64)
        if self.count:
            np.maximum.at(found, self._rank, self._front[self._topology.number] - self._enqueued)
        return found

    def shown(self, *, urgent: bool) -> tuple[GroupFigures, ...]:
        """Return all groups of a small job; of a big one the default group, and those in trouble if it is `urgent`."""
        names = self._topology.names
        if self.count <= GROUPS_SHOWN_MAX:
            chosen = np.arange(self.count)
        else:
            first = np.flatnonzero(names == name_key(_DEFAULT_GROUP))
            worst = np.argsort(-self._inflight_s, kind="stable") if urgent else np.zeros(0, np.int64)
            worst = worst[self._inflight_s[worst] > limits.WAIT_S]
            chosen = np.fromiter(dict.fromkeys([*first.tolist(), *worst.tolist()]), np.int64)[:GROUPS_SHOWN_MAX]
        figures = (
            GroupFigures(
                name=group_name(int(names[place]), self.count),
                first_rank=int(self._rank[self._topology.rows_of(place, place + 1)].min()),
                lag=int(self.lag[place]),
                completed=int(self._completed[place]),
                inflight_s=float(self._inflight_s[place]),
            )
            for place in chosen.tolist()
        )
        # A rank that told of two groups of one name would make two series of the same labels.
        return tuple({(group.name, group.first_rank): group for group in figures}.values())


def group_name(key: int, groups: int) -> str:
    """Return what torch calls the groups whose name has this key, where that is a number; else the key."""
    # Names count the groups of the process, so they may be a little beyond how many there are now.
    numbered = _numbered(1 << max(10, (2 * groups - 1).bit_length()))
    return numbered.get(key, f"{key:08x}")


@lru_cache(maxsize=4)
def _numbered(count: int) -> dict[int, str]:
    return {name_key(str(number)): str(number) for number in range(count)}


def _hosts(job: JobMoment) -> tuple[tuple[tuple[str, int], ...], float]:
    """Return how many nodes are connected, quiet and lost, and for how long the quietest connected one has been so."""
    owners = set(np.unique(job.picture.owner).tolist())
    counts = {"connected": 0, "quiet": 0, "lost": 0}
    oldest_s = 0.0
    for number, served in job.served.items():
        if number not in owners:
            continue  # another connection speaks for its ranks by now
        if served.lost:
            counts["lost"] += 1
            continue
        quiet_s = job.picture.heard_ago_s(number)
        counts["quiet" if quiet_s > limits.SILENT_S else "connected"] += 1
        oldest_s = max(oldest_s, quiet_s)
    return tuple(counts.items()), oldest_s
