"""Tells of ranks in a call too many, that the others have left without. Why it is, says the rule of the cause."""

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.rules.frames.ends import end_evidence
from ncclwatch_server.judge.rules.frames.mismatch import shift_call
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.words import at_line, group_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.histories.own_calls import unfinished
from ncclwatch_server.judge.theory.roots import AloneRoot


def tell(case: Case, root: AloneRoot, cause: Cause, *, advice: str, reason: str, deed: str = "") -> Explanation:
    """Return what is told of ranks that are alone in a call; `reason` says why that call is too many.

    `deed`: what they did before it.
    """
    own, others = ranks_words(root.ranks), ranks_words(root.left)
    group, site = group_words(case.views, root.place.group), _site(case, root)
    inside = all(case.views[rank].ending is None for rank in root.ranks)
    verb = ("are" if len(root.ranks) > 1 else "is") if inside else ("were" if len(root.ranks) > 1 else "was")
    has = "have" if len(root.left) > 1 else "has"
    gone = "exited with code 0" if root.ended else f"{has} destroyed {group}"
    under = f" under `{root.call.condition.condition}`" if root.call is not None and root.call.condition else ""
    they = "they" if len(root.left) > 1 else "it"
    deed = shift_call(root.shift, "") if root.shift is not None else deed
    before = f"{own} {deed}; " if deed else ""
    call = root.shift.op.site if root.shift is not None else site
    return Explanation(
        cause=cause,
        summary=(
            f"{before}{own} {verb} in {root.place.op}{at_line(site)}{under}, which {others} will not call: "
            f"{they} {gone}."
        ),
        explanation=(
            f"Operation #{root.place.seq} of {group} needs all its members, and {others} will not come. {reason}"
        ),
        advice=advice,
        culprits=tuple(culprit(case.views[rank], call, f"in {root.place.op}") for rank in root.ranks),
        victims=root.victims,
        evidence=end_evidence(case, root.ranks),
    )


def _site(case: Case, root: AloneRoot) -> CallSite | None:
    """Return the line at which they wait."""
    ops = unfinished(case.views, root.left, root.ranks)
    waits = (block.wait.site for block in root.blocks if block.wait.site is not None)
    return next(waits, None) or next(iter(ops.values())).site
