"""Tells every independent root of a hang, each by the first stage that has something to say of it.

A root waits for nobody, so no other root explains it. What it does explain are the ranks whose waits lead to it: these
are no roots of their own, and the stages are asked again about the ranks that are left.
"""

from collections.abc import Callable, Sequence

from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Cause, Verdict
from ncclwatch_server.judge.rules.alike import ranks_of
from ncclwatch_server.judge.theory.case import Case

Stage = Callable[[Case], tuple[Verdict, ...]]

ROOTS_MAX = 8  # told at a time: who mends these looks again
_ENDINGS = frozenset({Cause.RANK_CRASHED, Cause.RANK_EXITED})


def every_root(case: Case, stages: Sequence[Stage]) -> tuple[Verdict, ...]:
    """Return a verdict for each independent root, in the order of the stages."""
    told: list[Verdict] = []
    rest = case
    for stage in stages:
        while len(told) < ROOTS_MAX and (found := stage(rest)):
            told += [verdict for verdict in found if _is_no_aftermath(case, told, verdict)]
            before, rest = rest, rest.beside(rank for verdict in found for rank in ranks_of(verdict))
            if (rest.told, rest.explained) == (before.told, before.explained):
                break
    return tuple(told)


def _is_no_aftermath(case: Case, told: Sequence[Verdict], verdict: Verdict) -> bool:
    """Say whether a root is there for another reason than that a rank has ended: it was there before, for certain."""
    if not any(each.cause in _ENDINGS for each in told):
        return True
    return verdict.onset_s > max(map(_ended_s, case.views.values()), default=0.0)


def _ended_s(view: RankView) -> float:
    return view.ending.age_s + view.news_age_s if view.ending is not None else 0.0
