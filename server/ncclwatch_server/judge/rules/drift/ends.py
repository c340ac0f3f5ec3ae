"""Adds to an alarm in what its ranks were known to differ, where such a difference leads to such a hang."""

from collections.abc import Sequence
from dataclasses import replace

from ncclwatch.contract.model.verdict import Cause, Severity, Verdict
from ncclwatch_server.judge.rules.drift.findings import Finding
from ncclwatch_server.judge.theory.case import Case


def with_drift(case: Case, verdict: Verdict, found: Sequence[Finding]) -> Verdict:
    """Add to an alarm in what its ranks were known to differ, where such a difference leads to such a hang.

    The cause stays where it is proven. Where nothing is known but that nothing moves, and the job has not made a step,
    a difference with which ranks cannot go on together is the cause.
    """
    if not found or verdict.severity is not Severity.CRITICAL:
        return verdict
    concerned = {*(culprit.rank for culprit in verdict.culprits), *verdict.victims}
    reasons = [each for each in found if verdict.cause in each.explains and not concerned.isdisjoint(each.odd)]
    if not reasons:
        return verdict
    reason = next((each for each in reasons if each.certain), reasons[0])
    begun = any(view.steps for view in case.views.values())
    if verdict.cause in _VAGUE and reason.certain and not begun:
        return _caused(verdict, reason)
    return replace(
        verdict,
        explanation=f"{verdict.explanation} The ranks are configured differently, which may be why: {reason.summary}",
        advice=f"{reason.advice} Otherwise: {verdict.advice}",
        evidence=(*verdict.evidence, *reason.evidence[:4]),
    )


_VAGUE = frozenset((Cause.TRANSPORT, Cause.UNDETERMINED))


def _caused(verdict: Verdict, reason: Finding) -> Verdict:
    odd = tuple(culprit for culprit in verdict.culprits if culprit.rank in reason.odd) or verdict.culprits
    others = {culprit.rank for culprit in verdict.culprits} - {culprit.rank for culprit in odd}
    return replace(
        verdict,
        cause=Cause.CONFIGURATION_DRIFT,
        summary=f"{verdict.summary.removesuffix('.')}: {reason.summary}",
        explanation=reason.explanation,
        advice=reason.advice,
        culprits=odd,
        victims=tuple(sorted({*verdict.victims, *others})),
        one_of=reason.one_of,
        evidence=(*reason.evidence[:4], *verdict.evidence),
    )
