"""A rank asks again and again for a file that it does not see."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import lingering, standstill
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import LingeringRoot, OutsideRoot, Root, Stay
from ncclwatch_server.judge.theory.stillness import Trouble

ADVICE = "Create and check shared paths on one rank, then broadcast the result to the other ranks."


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain ranks that stand still there, while others wait for them or have ended."""
    if isinstance(root, LingeringRoot) and root.stay is Stay.FILES:
        return lingering.tell(case, root, Cause.FILESYSTEM_VIEW)
    if not isinstance(root, OutsideRoot) or root.still.trouble is not Trouble.FILES:
        return None
    return standstill.tell(case, root, Cause.FILESYSTEM_VIEW, advice=ADVICE)


RULE = Rule(cause=Cause.FILESYSTEM_VIEW, advice=ADVICE, recognise=recognise)
