"""A collective is called under a test of the rank, so not by all."""

import re
from dataclasses import replace

from ncclwatch.contract.model.rank import SourceNote
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import alone, circle, mismatch, named_apart
from ncclwatch_server.judge.rules.frames.mismatch import shift_words
from ncclwatch_server.judge.telling.words import at_line, lies_words, wait_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Circle, Closed
from ncclwatch_server.judge.theory.histories.forwards import OneSided
from ncclwatch_server.judge.theory.histories.lines.call_sites import rank_condition
from ncclwatch_server.judge.theory.histories.lines.rank_tests import leads_past
from ncclwatch_server.judge.theory.histories.odd_side import condition_of
from ncclwatch_server.judge.theory.histories.parting import Parting
from ncclwatch_server.judge.theory.roots import AloneRoot, CircleRoot, MismatchRoot, NamedApartRoot, Root

CAUSE = Cause.RANK_CONDITIONAL_COLLECTIVE
_HOW = (
    "so that all ranks of the group make it. It may be inside a save, state_dict or log call; keep only the work of "
    "one rank under the if, such as writing the file."
)
# An argument that is another one on each rank: outside of the test all of them would be roots.
_OWN_ROOT = re.compile(r"\b(?P<name>(?:group_)?(?:src|dst))=[\w.]*rank\b(?:\(\))?")
LINE_MAX = 80  # characters of a source line in an advice
_HOW_PAST = (
    "so that none goes past it alone: all_reduce the condition with MAX, or broadcast it from one rank. Or move the "
    "call to where all ranks of the group make it."
)
ADVICE = f"Move this call outside the if, {_HOW}"


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain roots in which the call of one side, of any kind, lies under a test of the rank."""
    if isinstance(root, MismatchRoot) and root.partings[0].condition:
        advice = _advice(case, root.partings[0])
        found = mismatch.tell(case, root, CAUSE, reason=_reason, advice=advice, forward_explains=True)
        return _with_both(found, advice, root.forward) if _is_of_the_line(case, root.partings[0]) else found
    if isinstance(root, CircleRoot) and root.circle.note is not None:
        under, call = root.circle.note.condition, circle.own_call(root)
        deed = f"called {call} {lies_words(under)}" if call else ""
        reason = _in_circle(root.circle, under)
        return circle.tell(case, root, CAUSE, reason=reason, advice=ADVICE, deed=deed)
    if isinstance(root, AloneRoot) and root.call is not None and root.call.condition is not None:
        reason = f"That call is made {lies_words(root.call.condition.condition)}, so not by all ranks."
        return alone.tell(case, root, CAUSE, reason=reason, advice=ADVICE)
    if isinstance(root, NamedApartRoot) and root.note is not None:
        return named_apart.tell(case, root, CAUSE)
    return None


def _advice(case: Case, found: Parting) -> str:
    """Say which call to move: where the others' is under a test, the culprits' own is in order."""
    if found.shift is not None:
        return ADVICE
    if leads_past(found.condition):
        return f"Let all ranks decide alike at `{found.condition}`, {_HOW_PAST}"
    if not found.condition_on_others:
        note = condition_of(case.views, found.culprit)
        if note is None or not note.text:
            return ADVICE
        own_root = _OWN_ROOT.search(note.text)
        root = f"with one `{own_root['name']}` for all ranks, " if own_root is not None else ""
        return f"Move {_line_words(note)} outside the if, {root}{_HOW}"
    side = found.largest_other
    call = f"{side.op.op.value}{at_line(side.site)}"
    return f"Move {call}, which {ranks_words(found.culprit.ranks)} left out, outside the if, {_HOW}"


def _line_words(note: SourceNote) -> str:
    text = note.text if len(note.text) <= LINE_MAX else f"{note.text[:LINE_MAX].rstrip()}..."
    return f"the call at {note.site.place}, `{text}`,"


def _is_of_the_line(case: Case, found: Parting) -> bool:
    """Say whether the very line of the culprits' call lies under the test, rather than one that led to it."""
    if found.condition_on_others:
        return False
    if found.shift is None:
        note, site = condition_of(case.views, found.culprit), found.culprit.site
    else:  # where they stand now is only what came of it
        made, view = found.shift.op, case.views[found.culprit.ranks[0]]
        note, site = rank_condition(view, made.site, made.op.value, found.shift.route), made.site
    return note is not None and note.site == site


def _with_both(found: Explanation, advice: str, forward: OneSided | None) -> Explanation:
    """Return an explanation that says of a line in a forward what to do with it, whether it runs that forward or not.

    A log call in a validation step lies in the forward of the wrapper round the model, and does not run it.
    """
    if forward is None or found.advice == advice:
        return found
    remedy = f"{found.advice[0].lower()}{found.advice[1:]}"
    return replace(found, advice=f"{advice} If that line runs a forward: {remedy}")


def _reason(found: Parting) -> str:
    if found.shift is not None:
        return shift_words(found, found.shift)
    whose = "The others' call" if found.condition_on_others else "That call"
    return f"{whose} is made {lies_words(found.condition)}, so not by all ranks."


def _in_circle(found: Circle, condition: str) -> str:
    if found.closed is Closed.MEETING_ALONE:
        wait = found.making[0].wait
        callers = ranks_words(wait.members) if wait.members else "all ranks of the job"
        return f"That {wait_words(wait)} is called {lies_words(condition)}, and {callers} have to call it."
    return f"{ranks_words(found.guilty).capitalize()}: that call is made {lies_words(condition)}."


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
