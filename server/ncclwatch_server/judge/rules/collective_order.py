"""Ranks use groups, or two threads of each one group, in different orders."""

from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import circle, mismatch
from ncclwatch_server.judge.rules.frames.circle import departed_words
from ncclwatch_server.judge.telling.signs import sign_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Circle, Closed
from ncclwatch_server.judge.theory.histories.odd_side import Sign
from ncclwatch_server.judge.theory.histories.parting import Parting, Way
from ncclwatch_server.judge.theory.roots import CircleRoot, MismatchRoot, Root

CAUSE = Cause.COLLECTIVE_ORDER
ADVICE = (
    "Issue the collectives of these groups in the same order on every rank, from one thread. Where two threads need "
    "collectives, give each a process group of its own."
)
ADVICE_THREADS = (
    "Issue the collectives of this group from one thread only. Or give the thread that works beside training a "
    "process group of its own: dist.new_group(), called on all ranks in the same order."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a mismatch by two threads that cross, and a circle by the order of groups if nothing else closed it."""
    if isinstance(root, MismatchRoot) and root.partings[0].way is Way.THREADS:
        return mismatch.tell(case, root, CAUSE, reason=_threads, advice=ADVICE_THREADS)
    if isinstance(root, CircleRoot) and root.circle.closed is Closed.ORDER:
        return circle.tell(case, root, CAUSE, reason=_order(root.circle, case), advice=ADVICE)
    return None


def _threads(found: Parting) -> str:
    return (
        f"Operations of this group come from two threads ({' and '.join(found.threads)}). Nothing orders one thread's "
        "calls against the other's, so the ranks issue them in different orders."
    )


def _order(found: Circle, case: Case) -> str:
    if not found.groups:
        return ""
    # Who stands in its first wait has shown no order yet.
    order = "Ranks use these groups in different orders, or one rank skipped a call in one of them or made one too many"
    files = all(case.views[rank].file is not None for rank in found.ranks)
    order += ": no file holds the source that tells." if files else "."
    if found.sign is not Sign.NONE:
        return f"{order} {ranks_words(found.guilty).capitalize()}: {sign_words(found.sign, found.guilty)}."
    return f"{order} {departed_words(found)}" if found.departure is not None else order


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
