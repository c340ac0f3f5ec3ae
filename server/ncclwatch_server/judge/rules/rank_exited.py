"""A rank left training with exit code 0 while others still had collectives to run."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import ends
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.ends.causes import Went
from ncclwatch_server.judge.theory.roots import GoneRoot, Root

ADVICE = (
    "Let all ranks leave training together: this one returned or called exit while other ranks still had collectives "
    "to run."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain ranks that are gone without an error and are still needed."""
    if not isinstance(root, GoneRoot) or root.ends.went is not Went.LEFT:
        return None
    return ends.tell_left(case, root, Cause.RANK_EXITED, advice=ADVICE)


RULE = Rule(cause=Cause.RANK_EXITED, advice=ADVICE, recognise=recognise)
