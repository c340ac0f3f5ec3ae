"""Ranks that say themselves how they ended: in a log, in torchrun's table, or in the ring they left."""

from collections.abc import Mapping
from dataclasses import replace

from ncclwatch.contract.model.rank import Ending, ProcessState, ProcessView, RankView
from ncclwatch.contract.model.verdict import Verdict
from ncclwatch_server.judge.rules.endings import endings, is_victim
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.postmortem.matter import Matter
from ncclwatch_server.postmortem.roots import reaching


def ended_ranks(matter: Matter) -> tuple[Verdict, ...]:
    """Judge the ranks that ended by themselves. Errors at the loss of a peer are left to the judge to see through."""
    own = {rank: ending for rank, ending in matter.witness.endings.items() if _is_own(matter, rank, ending)}
    if not own:
        return ()
    snapshot = matter.snapshot(matter.recordings)
    views = {**snapshot.ranks, **{rank: _bare(matter, rank) for rank in own if rank not in snapshot.ranks}}
    ended = {rank: replace(view, ending=matter.witness.endings.get(rank)) for rank, view in views.items()}
    verdicts = endings(open_case(replace(snapshot, ranks=ended)))
    return tuple(_completed(matter, verdict, own) for verdict in verdicts)


def _is_own(matter: Matter, rank: int, ending: Ending) -> bool:
    """Say whether a rank ended by itself: one that still waited for others when it was recorded did not."""
    recording = matter.recordings.get(rank)
    waited = recording is not None and bool(recording.pending)
    return not is_victim(ending) and not (waited and ending.signal is None and recording is not None)


def _completed(matter: Matter, verdict: Verdict, own: Mapping[int, Ending]) -> Verdict:
    guilty = {each.rank for each in verdict.culprits}
    victims = {*verdict.victims, *reaching(matter.waits, guilty, through_unknown=True), *matter.waits.blocked} - guilty
    different = {(each.exception, each.signal) for each in own.values()}
    # Logs of different ranks do not tell which of two failures came first.
    return replace(
        verdict,
        victims=tuple(sorted(victims)),
        one_of=len(different) > 1,
        explained=(len(victims & set(matter.waits.blocked)), len(matter.waits.blocked)),
        evidence=tuple(replace(each, source="log") if each.source == "agent" else each for each in verdict.evidence),
    )


def _bare(matter: Matter, rank: int) -> RankView:
    return RankView(
        rank=rank,
        local_rank=0,
        host="",
        pid=0,
        device="",
        world_size=len(matter.world),
        local_world_size=len(matter.world),
        attempt=0,
        process=ProcessView(state=ProcessState.UNKNOWN),
        pulse_age_s=0.0,
        initialised=True,
    )
