"""A rank stands still where its data should come from."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import standstill
from ncclwatch_server.judge.rules.frames.standstill import ADVICE_GIL, is_held_by_the_gil
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import OutsideRoot, Root
from ncclwatch_server.judge.theory.stillness import Trouble

ADVICE = (
    "Look at where this rank's data comes from: the file, mount, socket or worker named in the stack does"
    " not answer. Give reads a deadline and retry, or DataLoader(timeout=...), so that a stall becomes an"
    " error."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain ranks that stand still there, while others wait for them."""
    if not isinstance(root, OutsideRoot) or root.still.trouble is not Trouble.DATA:
        return None
    native = is_held_by_the_gil(case.views[root.ranks[0]], root.still)
    return standstill.tell(case, root, Cause.DATA_STALL, advice=ADVICE_GIL if native else ADVICE)


RULE = Rule(cause=Cause.DATA_STALL, advice=ADVICE, recognise=recognise)
