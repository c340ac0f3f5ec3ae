"""A rank goes on after an exception of which the others know nothing: to another call, or to none."""

from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import circle, mismatch, standstill
from ncclwatch_server.judge.telling.words import at, handled_words
from ncclwatch_server.judge.theory.case import Case, main_thread
from ncclwatch_server.judge.theory.circles import Closed
from ncclwatch_server.judge.theory.histories.parting import Parting, Way
from ncclwatch_server.judge.theory.roots import CircleRoot, MismatchRoot, OutsideRoot, Root
from ncclwatch_server.judge.theory.stillness import Trouble

CAUSE = Cause.SWALLOWED_EXCEPTION
ADVICE = (
    "Re-raise the exception before any collective, also out of a finally block. Or tell the other ranks (all_reduce an "
    "error flag) and let all retry or stop together. Then fix the exception itself."
)

ADVICE_THREAD = (
    "Fix the exception that ended that thread. Let a thread that makes collectives end its process when it fails, or "
    "tell the other ranks, so that none waits for it."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a root in which ranks came to a wait, or to a standstill, with an exception in hand."""
    if isinstance(root, MismatchRoot) and root.partings[0].way is Way.EXCEPTION:
        return mismatch.tell(case, root, CAUSE, reason=_reason, advice=ADVICE, deed=_raised_before)
    if isinstance(root, CircleRoot) and root.circle.closed is Closed.EXCEPTION:
        reason = " ".join(handled_words(each) for each in root.circle.strays)
        texts = {each.text for each in root.circle.strays}
        call = circle.own_call(root)
        deed = f"raised {texts.pop()} and called {call}" if len(texts) == 1 and call else ""
        return circle.tell(case, root, CAUSE, reason=reason, advice=ADVICE, deed=deed)
    if isinstance(root, CircleRoot) and root.circle.closed is Closed.THREAD:
        reason = " ".join(f"Rank {rank}: {_lost_thread(case.views[rank])}." for rank in root.circle.guilty)
        deed = f"continued although {_lost_thread(case.views[root.ranks[0]])}" if len(root.ranks) == 1 else ""
        return circle.tell(case, root, CAUSE, reason=reason, advice=ADVICE_THREAD, deed=deed)
    if isinstance(root, OutsideRoot) and root.still.trouble is Trouble.EXCEPTION:
        return standstill.tell(case, root, CAUSE, reason=_caught(case.views[root.ranks[0]]), advice=ADVICE)
    return None


def _reason(found: Parting) -> str:
    return handled_words(found.handled) if found.handled is not None else ""


def _raised_before(found: Parting) -> str:
    # A finally block makes calls too while an exception is on its way, and nobody has caught that.
    return f"raised {found.handled.text} and " if found.handled is not None else ""


def _lost_thread(view: RankView) -> str:
    return standstill.thread_words(view.ended_thread) if view.ended_thread is not None else ""


def _caught(view: RankView) -> str:
    thread = main_thread(view)
    text = (thread.exception if thread else "") or view.last_exception
    site = (thread.exception_site if thread else None) or view.last_exception_site
    did = "raised" if thread is not None and thread.exception else "caught"
    return f"It {did} {text}{at(site)} and continued on its own; the other ranks do not know of it."


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
