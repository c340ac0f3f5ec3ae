"""A rank went another way than the others: it skipped a call, left a function or a loop, or set no key."""

from dataclasses import replace

from ncclwatch.contract.model.verdict import Cause, Divergence
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule
from ncclwatch_server.judge.rules.frames import alone, circle, ends, mismatch, standstill
from ncclwatch_server.judge.rules.frames.circle import departed_words
from ncclwatch_server.judge.rules.frames.mismatch import either_shifted, shift_call, shift_words
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.signs import sign_words
from ncclwatch_server.judge.telling.words import at, group_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Circle, Closed
from ncclwatch_server.judge.theory.histories.habits import Slip
from ncclwatch_server.judge.theory.histories.odd_side import Side, Sign
from ncclwatch_server.judge.theory.histories.parting import Parting, Way, kin_of
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift
from ncclwatch_server.judge.theory.roots import AloneRoot, CircleRoot, GoneRoot, MismatchRoot, OutsideRoot, Root
from ncclwatch_server.judge.theory.waits.rank_standing import find_issued

CAUSE = Cause.DIVERGENT_CONTROL_FLOW
ADVICE = (
    "Let all ranks take the same decision: all_reduce the condition with MAX, or broadcast it from one rank. Then all "
    "skip, stop or continue together."
)
ADVICE_KEY = (
    "Let a rank set that key before it waits for others. If it did, compare the names of the keys that are set and "
    "waited for: prefix, number and count."
)
ADVICE_UNUSED = (
    "Pass find_unused_parameters=True to DistributedDataParallel if part of the model may be unused on some ranks. Or "
    "add that part to the loss with weight 0."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a mismatch of sides that went different ways, and a circle that a call or a key left out has closed."""
    if isinstance(root, MismatchRoot):
        first = root.partings[0]
        if kin_of(first, in_forward=root.forward is not None) is not Way.UNKNOWN:
            return None
        advice = f"{ADVICE_UNUSED} {ADVICE}" if first.forwards else ADVICE
        return mismatch.tell(case, root, CAUSE, reason=_reason, advice=advice)
    if isinstance(root, OutsideRoot):
        return _outside(case, root, root.shift) if root.shift is not None else None
    if isinstance(root, GoneRoot) and root.shift is not None:
        return _left_early(case, root, root.shift)
    if isinstance(root, AloneRoot):
        made = f"{ranks_words(root.left).capitalize()} made no call at that line."
        reason = _shifted_words(case, root.shift) if root.shift is not None else made
        return alone.tell(case, root, CAUSE, reason=reason, advice=ADVICE)
    reason = _in_circle(case, root.circle) if isinstance(root, CircleRoot) else ""
    if not isinstance(root, CircleRoot) or not reason:
        return None
    shift = root.circle.shift
    deed = shift_call(shift, "") if shift is not None and root.decided else ""
    advice = ADVICE_KEY if root.circle.closed is Closed.KEY else ADVICE
    return circle.tell(case, root, CAUSE, reason=reason, advice=advice, deed=deed)


def _reason(found: Parting) -> str:
    own = ranks_words(found.culprit.ranks)
    if found.shift is not None:
        return shift_words(found, found.shift)
    if found.slip is not None:
        return _slip_words(found, found.slip)
    if found.way_out:
        return f"{own.capitalize()} left a function earlier than other ranks, at a test of the rank: {found.way_out}."
    if found.forwards:
        bucket = found.largest_other.op.label
        return (
            f"All ranks have run {found.forwards} forward passes, so none ran out of batches; {own} continued without "
            f"reducing {bucket}: part of the model was unused in its last loss, or that backward was skipped."
        )
    if found.loop:
        ways = f", which has a way out that each rank takes on its own ({found.escapes[0]})" if found.escapes else ""
        return f"One side has left the loop `{found.loop}`{ways}; the other is in it, still or again."
    sign = sign_words(found.sign, found.culprit.ranks)
    return f"Why {own}: {sign}." if found.decided else f"{sign.capitalize()}."


def _slip_words(found: Parting, slip: Slip) -> str:
    own = ranks_words(found.culprit.ranks)
    ahead = f"{ranks_words(slip.ranks)} was at {slip.clock} {slip.value + slip.offset}, other ranks at {slip.value}"
    after = "Each later call was paired with the wrong call of the other ranks."
    if not found.decided:
        behind = ranks_words([rank for side in (found.culprit, *found.others) for rank in _besides(side, slip)])
        return (
            f"It began earlier: at operation #{slip.seq} {ahead}. Either {ranks_words(slip.ranks)} skipped a call "
            f"before, or {behind} made one too many. {after}"
        )
    if set(found.culprit.ranks) <= set(slip.ranks) and slip.offset > 0:
        unit = slip.clock if slip.offset == 1 else f"{slip.clock}es" if slip.clock == "batch" else f"{slip.clock}s"
        where = f" A rank may skip on its own at line {found.escapes[0]}." if found.escapes else ""
        return (
            f"It began earlier: at operation #{slip.seq} {ahead}, so the operations of {slip.offset} {unit} were "
            f"skipped there. {after}{where}"
        )
    return (
        f"It began earlier: before operation #{slip.seq} {own} made a call the others did not make ({ahead}). {after}"
    )


def _besides(side: Side, slip: Slip) -> list[int]:
    return [rank for rank in side.ranks if rank not in slip.ranks]


def _in_circle(case: Case, found: Circle) -> str:
    if found.closed is Closed.KEY:
        return _key_words(found)
    if found.closed is Closed.HABIT_LEFT and found.departure is not None and not found.departure.usual.op.is_p2p:
        return departed_words(found)
    return _shifted_words(case, found.shift, decided=found.decided) if found.shift is not None else ""


def _outside(case: Case, root: OutsideRoot, shift: Shift) -> Explanation:
    """Explain ranks that have left out a call, or made one too many, and are through where the others still wait."""
    found = standstill.tell(
        case, root, CAUSE, advice=ADVICE, reason=_shifted_words(case, shift), before=shift_call(shift, "")
    )
    mine = find_issued(case.views[root.ranks[0]], shift.group, shift.seq)
    issued = (find_issued(case.views[rank], shift.group, shift.seq) for rank in root.victims if rank in case.views)
    theirs = next((op for op in issued if op is not None), None)
    if mine is None or theirs is None:
        return found
    sign = Sign.SKIPPED if shift.skipped > 0 else Sign.MADE_MORE
    divergence = Divergence(
        group=shift.group, seq=shift.seq, culprit_op=mine.op.value, culprit_site=mine.site, victim_op=theirs.op.value,
        victim_site=theirs.site, fact=sign_words(sign, root.ranks),
    )  # fmt: skip
    return replace(found, divergence=divergence)


def _left_early(case: Case, root: GoneRoot, shift: Shift) -> Explanation:
    """Explain ranks that have left out a call, and so came to their end while the others were in the call before it."""
    found = ends.tell_left(case, root, CAUSE, advice=ADVICE, reason=_shifted_words(case, shift))
    return replace(
        found,
        summary=f"{ranks_words(shift.ranks)} {shift_call(shift, '')}; {found.summary}",
        culprits=tuple(
            culprit(case.views[rank], shift.op.site, "left out that call, and ended") for rank in shift.ranks
        ),
    )


def _shifted_words(case: Case, shifted: Shift, *, decided: bool = True) -> str:
    group = group_words(case.views, shifted.group)
    call = f"{shifted.op.op.value} of {group}{at(shifted.op.site)}"
    own = ranks_words(shifted.ranks)
    what = (
        f"{'skipped' if decided else 'did not make'} {call}, which the other ranks made"
        if shifted.skipped > 0
        else f"made {call}, which no other rank did"
    )
    either = "" if decided else f" {either_shifted(own, shifted)}"
    return (
        f"It began at operation #{shifted.seq} of {group}: {own} {what}.{either} Equal calls pair silently, so each "
        "later call was paired with the wrong call of the other ranks."
    )


def _key_words(found: Circle) -> str:
    verb = "waits" if len(found.waiters) == 1 else "wait"
    what = f"{ranks_words(found.waiters).capitalize()} {verb} for a key that no rank has set under that name"
    if found.decided:
        return f"{what}, and {ranks_words(found.guilty)} continued without it."
    return f"{what}; who should have set it is not recorded."


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise)
