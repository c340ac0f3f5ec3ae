"""Adds to an alarm in what its ranks were known to differ, where such a difference leads to such a hang."""

import signal
from collections.abc import Sequence
from dataclasses import replace

from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch_server.judge.rules.drift.findings import Finding
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.theory.case import Case


def with_drift(case: Case, verdict: Verdict, found: Sequence[Finding]) -> Verdict:
    """Add to an alarm in what its ranks were known to differ, where such a difference leads to such a hang.

    The cause stays where it is proven. Where nothing is known but that nothing moves, and the job has not made a step,
    a difference with which ranks cannot go on together is the cause.
    """
    if not found or verdict.severity is not Severity.CRITICAL:
        return verdict
    end = Cause.TRANSPORT if _aborted_inside(case, verdict) else verdict.cause
    concerned = {*(each.rank for each in verdict.culprits), *verdict.victims}
    reasons = [each for each in found if end in each.explains and not concerned.isdisjoint(each.odd)]
    if not reasons:
        return verdict
    reason = next((each for each in reasons if each.certain), reasons[0])
    begun = any(view.steps for view in case.views.values())
    if end in _VAGUE and reason.certain and not begun:
        return _caused(case, verdict, reason, concerned)
    return replace(
        verdict,
        explanation=f"{verdict.explanation} The ranks are configured differently, which may be why: {reason.summary}",
        advice=f"{reason.advice} Otherwise: {verdict.advice}",
        evidence=(*verdict.evidence, *reason.evidence[:4]),
    )


_VAGUE = frozenset((Cause.TRANSPORT, Cause.UNDETERMINED))


def _aborted_inside(case: Case, verdict: Verdict) -> bool:
    """Whether native code aborted a rank within a collective: torch does so a minute after an error of NCCL."""
    if verdict.cause is not Cause.RANK_CRASHED or not verdict.culprits:
        return False
    view = case.views.get(verdict.culprits[0].rank)
    if view is None or view.ending is None or view.ending.signal != signal.SIGABRT:
        return False
    return not view.ending.exception and any(not op.completed for op in view.history[-1:])


def _caused(case: Case, verdict: Verdict, reason: Finding, concerned: set[int]) -> Verdict:
    known = {each.rank: each for each in verdict.culprits}
    odd = tuple(
        known.get(rank) or culprit(case.views[rank], None, reason.doing)
        for rank in reason.odd
        if rank in concerned and rank in case.views
    )
    odd = odd or verdict.culprits
    others = concerned.difference(each.rank for each in odd)
    return replace(
        verdict,
        cause=Cause.CONFIGURATION_DRIFT,
        summary=f"{verdict.summary.removesuffix('.')}: {reason.summary}",
        explanation=reason.explanation,
        advice=reason.advice,
        culprits=odd,
        victims=tuple(sorted(others)),
        one_of=reason.one_of,
        certainty=Certainty.STALLED if verdict.certainty is Certainty.PROVEN else verdict.certainty,
        evidence=(*reason.evidence[:4], *verdict.evidence),
    )
