"""Sends and receives wait for each other: both sides the same way round, or for a rank that waits for another."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import circle
from ncclwatch_server.judge.rules.frames.circle import departed_words
from ncclwatch_server.judge.telling.words import wait_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Circle, Closed
from ncclwatch_server.judge.theory.roots import CircleRoot, Root

CAUSE = Cause.P2P_DEADLOCK
ADVICE = (
    "Post every recv in time for its send: let one side receive first, or post both with batch_isend_irecv and wait "
    "afterwards. Check that peers and tags match."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a circle of sends and receives, or with one, that nothing else closed."""
    reason = _reason(root.circle) if isinstance(root, CircleRoot) else ""
    if not isinstance(root, CircleRoot) or not reason:
        return None
    return circle.tell(case, root, CAUSE, reason=reason, advice=ADVICE)


def _reason(found: Circle) -> str:
    first = found.first
    if found.closed is Closed.NEW_PAIR and first is not None:
        return (
            f"Rank {first.rank} has never before made {wait_words(first.wait)}; the others do what they did "
            f"{found.met_before} times before. Either that is wrong, or rank {first.wait.peer} has left its part out."
        )
    if found.closed is Closed.WRONG_PEER and first is not None:
        return (
            f"Rank {first.rank} addresses rank {first.wait.peer}, but rank {found.meets} is the one that waits for it."
        )
    if found.closed is Closed.HABIT_LEFT and found.departure is not None and found.departure.usual.op.is_p2p:
        return departed_words(found)
    return "Each side of a send or recv needs the other to be there first." if found.closed is Closed.PAIRS else ""


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
