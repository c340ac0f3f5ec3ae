"""Works out what a job's page says beside its picture, of one sight of the job, in a thread."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ncclwatch.contract.digests import WAIT_KINDS
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch.contract.words.text import WAIT_WORDS, ranks_words
from ncclwatch_server.http.job_views import nodes_of
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.jobs.group_progress import Frontier, frontier
from ncclwatch_server.jobs.outcome import Outcome
from ncclwatch_server.jobs.rank_states import LONG_S, RankState, States, counted
from ncclwatch_server.jobs.read_model import JobSight, JobStatus
from ncclwatch_server.ui.batches import LoopTable, loop_tables
from ncclwatch_server.ui.step_rate import StepRate

GROUPS_MAX = 16
HOSTS_MAX = 32
STATE_RANKS_MAX = 256  # listed by number; of more only the count is told
ROTATION = 32  # ranks whose phase is looked up in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """The ranks in one state."""

    state: RankState
    count: int
    ranks: tuple[int, ...]  # () where there are too many to be read


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One machine of a job."""

    host: str
    ranks: tuple[int, ...]
    connected: bool
    quiet_s: float
    worst: RankState


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Everything a job's page tells in words and tables."""

    sentence: str
    status: JobStatus
    steps: int
    steps_per_s: float
    states: tuple[StateRow, ...]
    incidents: tuple[Incident, ...]  # open, the worst first
    waiting: tuple[str, ...]
    stragglers: tuple[Incident, ...]
    notices: tuple[str, ...]
    frontier: Frontier
    doing: tuple[tuple[str, int], ...]  # what ranks wait in, by their digests
    phases: tuple[tuple[str, tuple[int, ...]], ...]  # by the full views that are known
    looked_at: int  # ranks of which a full view is known
    loops: tuple[LoopTable, ...]
    hosts: tuple[HostRow, ...]
    hosts_total: int
    unnamed: tuple[int, ...]  # ranks whose full views would tell more


def panel_of(sight: JobSight, states: States, step_rate: StepRate) -> Panel:
    """Return what there is to tell of a job."""
    found = frontier(sight.picture, sight.names, GROUPS_MAX)
    hosts = _hosts(sight, states)
    incidents = sight.incidents
    rows = tuple(_state_row(states, state, count) for state, count in counted(states).items())
    return Panel(
        sentence=_sentence(sight, incidents, rows, step_rate),
        status=sight.status,
        steps=sight.steps,
        steps_per_s=step_rate.per_s,
        states=rows,
        incidents=incidents,
        waiting=sight.waiting,
        stragglers=tuple(i for i in incidents if i.verdict.cause is Cause.STRAGGLER),
        notices=sight.notices,
        frontier=found,
        doing=_doing(sight),
        phases=_phases(sight),
        looked_at=len(sight.notes),
        loops=loop_tables(sight.loops),
        hosts=hosts[:HOSTS_MAX],
        hosts_total=len(hosts),
        unnamed=_unnamed(sight, (group.sample for group in found.groups if not group.name)),
    )


def _sentence(sight: JobSight, incidents: tuple[Incident, ...], rows: tuple[StateRow, ...], step_rate: StepRate) -> str:
    if sight.status is JobStatus.ENDED:
        word = "is over" if sight.end.outcome is Outcome.UNKNOWN else f"has {sight.end.outcome.value}"
        word = "ended while it hung" if sight.end.outcome is Outcome.HUNG else word
        return f"This job {word}, after step {sight.steps}{': ' + sight.end.sentence if sight.end.sentence else '.'}"
    if sight.status is JobStatus.HUNG:
        faults = sum(each.verdict.severity is Severity.CRITICAL for each in incidents)
        first = incidents[0].verdict.summary
        return first if faults == 1 else f"{faults} faults at once. The first: {first}"
    if sight.status is JobStatus.WAITING:
        return sight.waiting[0]
    counts = {row.state: row.count for row in rows}
    who = _who(sight, counts.get(RankState.MOVING, 0), counts.get(RankState.LONG_WAITING, 0))
    speed = f", {step_rate.per_s:.2g} steps a second" if step_rate.per_s else ""
    told = f"{who}; step {sight.steps}{speed}."
    if counts.get(RankState.DETACHED):
        told = f"{_unwatched(next(row for row in rows if row.state is RankState.DETACHED))} {told}"
    return told


def _unwatched(row: StateRow) -> str:
    who = ranks_words(row.ranks) if row.ranks else f"{row.count:,} ranks"
    verb, them = ("is", "it") if row.count == 1 else ("are", "them")
    return (
        f"{who} {verb} not watched any more, and a wait for {them} is not judged: detach() was called there, or the "
        "pulse failed (the rank's log says which)."
    )


def _who(sight: JobSight, moving: int, waiting: int) -> str:
    every, missing = sight.world_size, sight.world_size - int(sight.picture.seen.sum())
    if moving == every:
        return f"All {every:,} ranks communicate"
    if waiting:
        told = f"{waiting:,} of {every:,} ranks have waited for others for over {LONG_S:.0f} s, without a verdict yet"
    else:
        told = f"{moving:,} of {every:,} ranks communicate, no rank is waited for longer than usual"
    return f"{told}; {missing:,} were not seen yet" if missing else told


def _state_row(states: States, state: RankState, count: int) -> StateRow:
    few = count <= STATE_RANKS_MAX
    return StateRow(state=state, count=count, ranks=tuple(np.flatnonzero(states == state).tolist()) if few else ())


def _doing(sight: JobSight) -> tuple[tuple[str, int], ...]:
    kinds = sight.picture.ranks["wait_kind"][sight.picture.reporting]
    counts = np.bincount(kinds[(kinds >= 0) & (kinds < len(WAIT_KINDS))], minlength=len(WAIT_KINDS)).tolist()
    named = ((WAIT_WORDS.get(kind, kind.value), count) for kind, count in zip(WAIT_KINDS, counts, strict=True))
    return tuple(sorted(((word, count) for word, count in named if count), key=lambda each: -each[1]))


def _phases(sight: JobSight) -> tuple[tuple[str, tuple[int, ...]], ...]:
    together: dict[str, list[int]] = {}
    for note in sight.notes.values():
        if note.phase:
            together.setdefault(note.phase, []).append(note.rank)
    ordered = sorted(together.items(), key=lambda item: (len(item[1]), item[0]))
    return tuple((phase, tuple(sorted(ranks))) for phase, ranks in ordered)


def _hosts(sight: JobSight, states: States) -> tuple[HostRow, ...]:
    """Return the machines, those with the worst ranks first. One that came back is named once."""
    newest: dict[str, HostRow] = {}
    for node in nodes_of(sight):
        known = newest.get(node.host)
        if not node.ranks and known is not None:
            continue
        ranks = tuple(sorted({*node.ranks, *(known.ranks if known is not None else ())}))
        worst = RankState(int(states[list(ranks)].max())) if ranks else RankState.ABSENT
        newest[node.host] = HostRow(
            host=node.host, ranks=ranks, connected=node.connected, quiet_s=node.quiet_s, worst=worst
        )
    return tuple(sorted(newest.values(), key=lambda row: (-row.worst, row.ranks[:1], row.host)))


def _unnamed(sight: JobSight, samples: Iterable[int]) -> tuple[int, ...]:
    """Return ranks whose views would name groups, then ranks in turn, so that phases do not grow old."""
    begin = int(sight.picture.now) * ROTATION % sight.world_size
    turn = ((begin + number) % sight.world_size for number in range(min(ROTATION, sight.world_size)))
    return tuple(dict.fromkeys((*samples, *turn)))


def summary_of(rows: Iterable[StateRow]) -> str:
    """Return the states in one line, for those who do not see the picture."""
    parts = [f"{row.count} {row.state.words}" for row in rows]
    named = [f"{ranks_words(row.ranks)}: {row.state.words}" for row in rows if row.state is RankState.BLAMED]
    return "; ".join((*named, *parts))
