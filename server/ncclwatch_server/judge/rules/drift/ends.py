"""What has a difference between ranks that was known before to do with how the job ended, or hangs?"""

import re
from collections.abc import Sequence
from dataclasses import replace

from ncclwatch.contract.model.verdict import Cause, Severity, Verdict
from ncclwatch_server.judge.rules.drift.findings import Finding, findings
from ncclwatch_server.judge.rules.known_ends import KnownEnd
from ncclwatch_server.judge.theory.case import Case

# What DDP says of parameters that it compares, before and since 1.13. It may also have met another collective: then
# the models that ranks told of are the same, and nothing is said here.
_REFUSED = re.compile(
    r"DDP expects same model across all ranks|appears not to match (?:sizes|strides) of the same param"
)


def wrapped_otherwise(case: Case, crashed: Sequence[int], first: int) -> KnownEnd | None:
    """Explain a crash of DDP at the comparison of models that are known to differ."""
    refused = [rank for rank in crashed if _refused(case, rank)]
    if first not in refused:
        return None
    models = (each for each in findings(case.snapshot.setup, {}) if each.wrapper == "DDP")
    found = next((each for each in models if set(refused) <= {*each.odd, *each.others}), None)
    if found is None:
        return None
    ranks = tuple(rank for rank in found.odd if rank in case.views) or tuple(refused)
    return KnownEnd(
        cause=Cause.CONFIGURATION_DRIFT,
        ranks=ranks,
        victims=tuple(sorted(set(refused) - set(ranks))),
        summary=found.summary,
        explanation=found.explanation,
        advice=found.advice,
        evidence=found.evidence,
    )


def _refused(case: Case, rank: int) -> bool:
    ending = case.views[rank].ending
    return ending is not None and _REFUSED.search(ending.exception) is not None


def with_drift(case: Case, verdict: Verdict, found: Sequence[Finding]) -> Verdict:
    """Add to an alarm in what its ranks were known to differ, where such a difference leads to such a hang.

    The cause stays where it is proven. Where nothing is known but that nothing moves, and the job has not made a step,
    a difference with which ranks cannot go on together is the cause.
    """
    if verdict.severity is not Severity.CRITICAL:
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
        explanation=f"{verdict.explanation} The ranks were not set up alike, which may be why: {reason.summary}",
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
