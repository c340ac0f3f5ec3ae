"""A rank stands still in a save."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import standstill
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import OutsideRoot, Root
from ncclwatch_server.judge.theory.stillness import Trouble

ADVICE = (
    "Look at the storage this rank writes to: it makes no progress. Write to local disk first and copy afterwards, "
    "with a deadline for the copy."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain ranks that stand still there, while others wait for them."""
    if not isinstance(root, OutsideRoot) or root.still.trouble is not Trouble.SAVE:
        return None
    return standstill.tell(case, root, Cause.STUCK_SAVE, advice=ADVICE)


RULE = Rule(cause=Cause.STUCK_SAVE, advice=ADVICE, recognise=recognise)
