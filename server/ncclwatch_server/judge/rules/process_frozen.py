"""A process was stopped, by a signal or by a debugger."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import standstill
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import OutsideRoot, Root
from ncclwatch_server.judge.theory.stillness import Trouble

ADVICE = (
    "Continue the process (kill -CONT <pid>, or end the debugger that holds it), and find out who stopped it. If it "
    "cannot continue, restart the job."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain ranks that were stopped while others wait for them."""
    if not isinstance(root, OutsideRoot) or root.still.trouble is not Trouble.STOPPED:
        return None
    pid = case.views[root.ranks[0]].pid
    return standstill.tell(case, root, Cause.PROCESS_FROZEN, advice=ADVICE.replace("<pid>", str(pid)))


RULE = Rule(cause=Cause.PROCESS_FROZEN, advice=ADVICE, recognise=recognise)
