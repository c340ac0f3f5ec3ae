"""Completes a verdict on a job that left files: who says what, how sure that is, how long the hang had lasted."""

from dataclasses import replace

from ncclwatch.contract.model.verdict import Certainty, Verdict
from ncclwatch_server.judge.alike import ranks_of
from ncclwatch_server.judge.telling.moments import lasted_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.moments import Lasted, are_moving, is_timed


def by_files(case: Case, verdict: Verdict) -> Verdict:
    """Return a verdict with what the files of its ranks leave open; as it is where agents report the job."""
    if not case.has_files:
        return verdict
    sources = {rank: view.file.source for rank, view in case.views.items() if view.file is not None}
    evidence = tuple(
        replace(fact, source=sources.get(fact.rank, fact.source))
        if fact.source == "ring"
        else replace(fact, source="log")
        if fact.source == "agent"
        else fact
        for fact in verdict.evidence
    )
    ranks = set(ranks_of(verdict))
    waiting = [rank for rank in ranks if rank in case.graph.blocks]
    known = all(is_timed(case.views[rank]) for rank in waiting)
    # Two recorders count for themselves: what one calls #7 need not be what the other does.
    proven = verdict.certainty is Certainty.PROVEN
    compared = proven and waiting and len({sources.get(rank) == "ring" for rank in ranks if rank in sources}) > 1
    awaited = [culprit.rank for culprit in verdict.culprits]
    words = lasted_words(Lasted(seconds=verdict.onset_s, known=known, moving=are_moving(case.views, awaited, waiting)))
    return replace(
        verdict,
        certainty=Certainty.STALLED if compared else verdict.certainty,
        explanation=verdict.explanation + (words if waiting else ""),
        onset_s=verdict.onset_s if known else 0.0,
        evidence=evidence,
    )
