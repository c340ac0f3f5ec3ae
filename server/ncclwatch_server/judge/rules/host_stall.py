"""A rank stands still on its host: at a lock, in a native call, or somewhere that nobody knows more of."""

from ncclwatch.contract.model.rank import RankView, WaitKind
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import circle, lingering, standstill
from ncclwatch_server.judge.rules.frames.standstill import ADVICE_GIL, is_held_by_the_gil
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Closed
from ncclwatch_server.judge.theory.places import is_over
from ncclwatch_server.judge.theory.roots import CircleRoot, LingeringRoot, OutsideRoot, Root
from ncclwatch_server.judge.theory.stillness import Trouble

CAUSE = Cause.HOST_STALL
ADVICE = (
    "Look at what this line waits for: a lock, a queue, a child process or a native call. Give it a deadline, and "
    "move it outside the training step."
)
ADVICE_LOCK = (
    "Release a file lock before any collective. Let one rank do the locked work, release the lock, and only then meet "
    "in a barrier."
)
ADVICE_THREAD = (
    "End the threads that this rank started before its program ends, or make them daemons: the interpreter waits for "
    "every other one. Then find out why the program was over while other ranks still trained."
)
ADVICE_LOCK_FILE = (
    "Make sure that no process uses the lock file, remove it, and start again. A file outlives the process that made "
    "it: lock with flock or fcntl, which the kernel releases when a process ends."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a circle that a file lock has closed, and ranks that stand still in nothing that is known."""
    if isinstance(root, CircleRoot) and root.circle.closed is Closed.LOCK:
        reason = f"{ranks_words(root.ranks).capitalize()} waits for other ranks while holding the lock."
        held = {block.wait.label for block in root.blocks if block.wait.kind is WaitKind.LOCK}
        call, alone = circle.own_call(root), len(root.ranks) == 1 and len(held) == 1
        deed = f"waits in {call} and holds the lock on {held.pop() or 'a file'}" if call and alone else ""
        return circle.tell(case, root, CAUSE, reason=reason, advice=ADVICE_LOCK, deed=deed)
    if isinstance(root, OutsideRoot) and root.still.trouble is Trouble.LOCK_FILE:
        return standstill.tell(case, root, CAUSE, advice=ADVICE_LOCK_FILE)
    if isinstance(root, OutsideRoot) and root.still.trouble is Trouble.ELSEWHERE:
        return standstill.tell(case, root, CAUSE, advice=_advice(case.views[root.ranks[0]], root))
    if isinstance(root, LingeringRoot):
        return lingering.tell(case, root, CAUSE)
    return None


def _advice(view: RankView, root: OutsideRoot) -> str:
    if is_over(view):
        return ADVICE_THREAD
    return ADVICE_GIL if is_held_by_the_gil(view, root.still) else ADVICE


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
