"""A member destroyed a group that others still wait in."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import destroyed
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import DestroyedRoot, Root

ADVICE = (
    "Call destroy_process_group once, after the last collective of every rank, and use nothing of the group afterwards."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a wait in a group that a member took down while it had as many batches as the others."""
    if not isinstance(root, DestroyedRoot) or root.counts is not None:
        return None
    return destroyed.tell(case, root, Cause.GROUP_DESTROYED, advice=ADVICE)


RULE = Rule(cause=Cause.GROUP_DESTROYED, advice=ADVICE, recognise=recognise)
