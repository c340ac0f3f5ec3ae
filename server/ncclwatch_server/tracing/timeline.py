"""Puts a trace together: of views, of states in the last minutes, of incidents. Pure."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.words.text import rank_list, seconds_words
from ncclwatch_server.incidents.book import Incident
from ncclwatch_server.jobs.rank_states import RankState
from ncclwatch_server.tracing.model import Clock, Facts, RankTracks, Slice, Timeline, Track
from ncclwatch_server.tracing.operations import Operations, Seen, batches, operations

RANKS_MAX = 256  # as tracks; of more, those that matter
CLOCKS_TOLD_MAX = 64
LEFT_TOLD_MAX = 100_000  # a ring that is not whole may say any number of ranks
NOTE_CHARS_MAX = 1000
STATE_S = 1.0  # between two columns


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The states of all ranks at some moments, the oldest first."""

    at_s: tuple[float, ...] = ()
    states: NDArray[np.uint8] | None = None  # of the shape (moments, ranks)


def history_of(columns: Iterable[tuple[float, bytes]]) -> History:
    """Return the states of columns: (seconds since 1970, one byte for each rank)."""
    found = tuple(columns)
    if not found:
        return History()
    states = np.stack([np.frombuffer(data, np.uint8) for _, data in found])
    return History(at_s=tuple(at for at, _ in found), states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Everything a trace is made of."""

    job: str
    world_size: int
    views: Sequence[RankView]
    seen: Mapping[int, Seen]  # when each view was taken
    now_s: float
    hosts: Mapping[int, str]  # of ranks without a view as well
    incidents: Sequence[Incident] = ()
    history: History = History()


def timeline(known: Known) -> Timeline:
    """Return the trace of a job."""
    found = operations(known.views, known.seen)
    culprits = {culprit.rank for incident in known.incidents for culprit in incident.verdict.culprits}
    shown = chosen(known, culprits)
    views = {view.rank: view for view in known.views}
    notes = []
    if len(shown) < known.world_size:
        here = set(shown)
        left = itertools.islice((rank for rank in range(known.world_size) if rank not in here), LEFT_TOLD_MAX)
        number = known.world_size - len(shown)
        notes.append(f"{number} of {known.world_size} ranks are left out: {rank_list(left)}"[:NOTE_CHARS_MAX])
    without = [rank for rank in shown if rank not in views]
    if views and without:
        notes.append(f"no operations are known of {len(without)} of the ranks shown")
    notes += [_clock_words(name, clock) for name, clock in list(found.clocks.items())[1:CLOCKS_TOLD_MAX]]
    return Timeline(
        job=known.job,
        ranks=tuple(_rank(known, found, rank, views.get(rank), rank in culprits) for rank in shown),
        incidents=tuple(_incident(incident, known.now_s) for incident in known.incidents),
        clocks=tuple(found.clocks.items()),
        notes=tuple(notes),
    )


def chosen(known: Known, culprits: Iterable[int], most: int = RANKS_MAX) -> tuple[int, ...]:
    """Return the ranks to show: all, or those that matter.

    Culprits come first, then ranks whose states differ from those of most ranks, one rank of each host, ranks that wait
    for culprits, and the others by number until there are enough.
    """
    if known.world_size <= most:
        return tuple(range(known.world_size))
    viewed = [view.rank for view in known.views]
    first_of_host = list({host: rank for rank, host in sorted(known.hosts.items(), reverse=True)}.values())
    victims = [rank for incident in known.incidents for rank in incident.verdict.victims]
    found: dict[int, None] = {}
    for rank in itertools.chain(culprits, _odd(known.history), viewed, first_of_host, victims, range(known.world_size)):
        if 0 <= rank < known.world_size:
            found[rank] = None
        if len(found) == most:
            break
    return tuple(sorted(found))


def _odd(history: History) -> list[int]:
    """Return the ranks whose states were not those of most ranks, those of the rarest history first."""
    if history.states is None or not len(history.states):
        return []
    found, number, count = np.unique(history.states, axis=1, return_inverse=True, return_counts=True)
    if found.shape[1] < 2:
        return []
    number = number.reshape(-1)
    usual = int(count.argmax())
    odd = np.flatnonzero(number != usual)
    return [int(rank) for rank in odd[np.argsort(count[number[odd]], kind="stable")]]


def _clock_words(name: str, clock: Clock) -> str:
    if clock.error_s is None:
        return f"the clock of {name} could not be aligned: no collective bounds it from both sides"
    return f"the clock of {name} is aligned by {clock.offset_s:+.6f} s, with an error of at most {clock.error_s:.6f} s"


def _rank(known: Known, found: Operations, rank: int, view: RankView | None, culprit: bool) -> RankTracks:
    host = view.host if view is not None else known.hosts.get(rank, "")
    tracks = [*found.by_rank.get(rank, ())]
    if view is not None:
        seen = known.seen[rank]
        now_s = seen.at_s + found.clocks.get(seen.clock, Clock()).offset_s
        tracks += [each for each in (batches(view, now_s), _beside(view, now_s)) if each]
    states = _states(known.history, rank)
    tracks += [states] if states else []
    return RankTracks(rank=rank, host=host, tracks=tuple(tracks), culprit=culprit)


def _beside(view: RankView, now_s: float) -> Track | None:
    """Return the phase that a rank is in and its newest saves."""
    found = [
        Slice(
            begin_s=now_s - save.began_s,
            end_s=now_s - (save.ended_s if save.ended_s is not None else 0.0),
            name=save.call,
            kind="save",
            facts=tuple(
                fact for fact in (("path", save.path), ("line", str(save.site or "")), ("error", save.error)) if fact[1]
            ),
        )
        for save in view.saves
    ]
    found.sort(key=lambda each: each.begin_s)
    apart: list[Slice] = []
    for each in found:  # saves of several threads overlap: each row holds one after the other
        if not apart or apart[-1].end_s <= each.begin_s:
            apart.append(each)
    if view.phase and not apart:
        apart = [Slice(begin_s=now_s - view.phase_s, end_s=now_s, name=view.phase, kind="phase")]
    return Track(name="phases and saves", slices=tuple(apart)) if apart else None


def _states(history: History, rank: int) -> Track | None:
    """Return what a rank did, second by second, as runs of the same state."""
    if history.states is None or not len(history.states):
        return None
    column = history.states[:, rank]
    edges = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(column)]
    slices = []
    for begin, end in itertools.pairwise(edges):
        state = RankState(int(column[begin]))
        if state is not RankState.ABSENT:
            end_s = history.at_s[end] if end < len(column) else history.at_s[-1] + STATE_S
            slices.append(Slice(begin_s=history.at_s[begin], end_s=end_s, name=state.words, kind="state"))
    return Track(name="state", slices=tuple(slices)) if slices else None


def _incident(incident: Incident, now_s: float) -> Slice:
    verdict = incident.verdict
    facts: Facts = (
        ("certainty", verdict.certainty.value),
        ("why", verdict.explanation),
        ("do", verdict.advice),
        ("culprits", rank_list(culprit.rank for culprit in verdict.culprits)),
        ("reported", f"{seconds_words(incident.onset_to_open_s)} after the wait began"),
        ("incident", incident.id),
    )
    return Slice(
        begin_s=incident.opened_at - incident.onset_to_open_s,
        end_s=incident.closed_at if incident.closed_at is not None else now_s,
        name=verdict.summary,
        kind="incident",
        facts=facts,
    )
