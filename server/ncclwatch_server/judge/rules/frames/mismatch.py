"""Tells of a collective that was entered with different signatures: who stands where, and where their histories part.

Why they parted is said by the rule of the cause.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

from ncclwatch.contract.model.rank import CallSite, RankView
from ncclwatch.contract.model.verdict import Cause, Divergence, Evidence
from ncclwatch.contract.words.text import ranks_words, seconds_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.rules.frames.data_buckets import bucket_evidence
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit, source_evidence
from ncclwatch_server.judge.telling.forwards import remedies, words
from ncclwatch_server.judge.telling.signs import sign_words
from ncclwatch_server.judge.telling.words import (
    at_line,
    either_words,
    group_words,
    lies_words,
    op_words,
    them,
    wait_verb,
)
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.histories.odd_side import Side
from ncclwatch_server.judge.theory.histories.parting import Parting, parted_callers
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift
from ncclwatch_server.judge.theory.roots import MismatchRoot
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation, find_issued


def tell(
    case: Case,
    root: MismatchRoot,
    cause: Cause,
    *,
    reason: Callable[[Parting], str],
    advice: str,
    deed: Callable[[Parting], str] = lambda _: "",
    forward_explains: bool = False,
) -> Explanation:
    """Return what is told of a mismatch for a cause.

    `reason` says why one of its sides diverged, `deed` what that side did before its call, for the headline;
    `forward_explains`: whether the forward that it is in has to be mended, rather than some decision before it, even
    where both sides run it in one mode.
    """
    first, forward = root.partings[0], root.forward
    guilty = frozenset(root.ranks)
    by_forward = forward is not None and (forward_explains or not forward.one_mode)
    return Explanation(
        cause=cause,
        summary=_summary(case, root, deed),
        explanation=_explanation(case, root, reason),
        advice=remedies(forward) if forward is not None and by_forward else advice,
        culprits=tuple(
            culprit(case.views[rank], _site_of(case, rank, side, first), f"in {op_words(side.op)}")
            for side in root.sides
            for rank in side.ranks
            if rank in guilty
        ),
        victims=root.victims,
        one_of=not root.decided,
        divergence=_divergence(case.views, root),
        evidence=_evidence(case.views, first, root.blocks),
    )


def _block_of(case: Case, rank: int, group: str, seq: int) -> Block | None:
    found = (b for b in case.found[rank].blocks if (b.operation.group, b.operation.seq) == (group, seq))
    return next(found, None)


def _site_of(case: Case, rank: int, side: Side, found: Parting) -> CallSite | None:
    if found.shift is not None and found.shift.skipped < 0 and rank in found.culprit.ranks:
        return found.shift.op.site  # the call too many is the mistake; where it stands now is a consequence
    block = _block_of(case, rank, side.op.group, side.op.seq)
    return (block.issued.site if block and block.issued else None) or side.site


def _summary(case: Case, root: MismatchRoot, deed: Callable[[Parting], str]) -> str:
    found = root.partings[0]
    if not found.decided:
        sides = found.sides
        if found.shift is not None:
            which = either_words([side.ranks for side in sides])
            return f"{which}: {ranks_words(found.culprit.ranks)} {shift_call(found.shift, '', decided=False)}."
        calls = ", ".join(
            f"{ranks_words(side.ranks)} called {_call(case, side, _without(sides, side))}" for side in sides
        )
        return f"{either_words([side.ranks for side in sides])}: {calls}."
    own = [rank for parting in root.partings for rank in parting.culprit.ranks]
    lead = ", ".join(_deed(case, each, deed(each)) for each in root.partings)
    waiting = (words for side in found.others for words in _waiting(case, side, found.culprit, own, root))
    return "; ".join((lead, *waiting)) + "."


def _deed(case: Case, found: Parting, before: str) -> str:
    own = found.culprit.ranks
    who = f"{ranks_words(own)}{_host(case, own)}"
    if found.shift is not None:
        return f"{who} {shift_call(found.shift, found.condition)}{_consequence(found.shift)}"
    under = f" {lies_words(found.condition)}" if found.condition and not found.condition_on_others else ""
    return f"{who} {before}called {_call(case, found.culprit, found.others)}{under}"


def _host(case: Case, ranks: Sequence[int]) -> str:
    """Return on which host ranks are, of a job on several."""
    hosts = {case.views[rank].host for rank in ranks}
    return f" on {hosts.pop()}" if len(hosts) == 1 and len({v.host for v in case.views.values()}) > 1 else ""


def _consequence(shift: Shift) -> str:
    return ", so its later calls pair with the wrong ones" if shift.skipped < 0 else ""


def _waiting(case: Case, side: Side, own: Side, awaited: Sequence[int], root: MismatchRoot) -> Iterator[str]:
    """Yield who of a side waits for the culprits, who may go on, and who completed the call with other arguments."""
    call = _call(case, side, (own,))
    passed = [rank for rank in side.ranks if rank in root.through]
    waits = [rank for rank in side.ranks if rank in root.victims and rank not in passed]
    inside = [rank for rank in side.ranks if rank not in (*waits, *passed)]
    if waits:
        yield f"{ranks_words(waits)} {wait_verb(waits)} for {them(awaited)} in {call}"
    if inside:
        yield f"{ranks_words(inside)} called {call}"
    if passed:
        yield f"{ranks_words(passed)} completed {call}"


def _call(case: Case, side: Side, others: tuple[Side, ...]) -> str:
    """Return the call of a side: with its arguments where others made the same one, and its caller if that differs."""
    callers = next((pair for other in others if (pair := parted_callers(case.views, side, other))), None)
    caller = f", called{at_line(callers[0])}" if callers is not None else ""
    alike = any(other.op.op is side.op.op for other in others)
    return f"{op_words(side.op) if alike else side.op.op.value}{at_line(side.site)}{caller}"


def _without(sides: tuple[Side, ...], own: Side) -> tuple[Side, ...]:
    return tuple(side for side in sides if side is not own)


def _explanation(case: Case, root: MismatchRoot, reason: Callable[[Parting], str]) -> str:
    found, forward, operation = root.partings[0], root.forward, root.operation
    own = ", ".join(f"{op_words(each.culprit.op)} on {ranks_words(each.culprit.ranks)}" for each in root.partings)
    others = " or ".join(sorted({op_words(side.op) for side in found.others}))
    first = (
        f"Operation #{operation.seq} of {group_words(case.views, operation.group)} is {own} and "
        f"{others} on the other ranks; all members must make the same call."
    )
    told = [first, *dict.fromkeys(reason(each) for each in root.partings)]
    if forward is not None:
        if forward.others_now is not None and found.loop:
            told.pop()  # that a side has left the loop inside of a forward is what its mode did
        told.append(words(forward))
    if root.then is not None:
        told.append(_then_words(case, root.then))
    if found.shift is None and found.slip is None and found.counts is None:
        told.append(_steps_words(case.views, found))
    return " ".join(each for each in told if each)


def _steps_words(views: Mapping[int, RankView], found: Parting) -> str:
    """Return how many optimizer steps two sides have made, if they differ by more than a hang within a step explains.

    Equal calls pair silently: after as many calls, a rank that makes fewer of them in each step has made more steps.
    """
    sides = (found.culprit, found.largest_other)
    counts = [{views[rank].steps for rank in side.ranks} for side in sides]
    if any(len(each) != 1 or 0 in each for each in counts):
        return ""
    (one,), (other,) = counts
    mine, theirs = (ranks_words(side.ranks) for side in sides)
    return f"Optimizer steps so far: {mine}: {one}, {theirs}: {other}." if abs(one - other) > 1 else ""


def _then_words(case: Case, then: Operation) -> str:
    """Return what became of the call after a mismatch that all have come through."""
    aborted = [rank for rank in then.members if (end := case.views[rank].ending) and end.signal == signal.SIGABRT]
    issued = next(op for rank in then.members if (op := find_issued(case.views[rank], then.group, then.seq)))
    verb = "were" if len(aborted) > 1 else "was"
    what = f"{ranks_words(aborted)} {verb} aborted in" if aborted else "no rank gets through"
    call = f"{issued.op.value}{at_line(issued.site)}"
    return f"It has ended, and {what} the next call, {call}: bytes of the two may have been mixed."


def _divergence(views: Mapping[int, RankView], root: MismatchRoot) -> Divergence:
    found, (group, seq, _) = root.partings[0], root.place
    other = found.largest_other
    if found.shift is not None:
        own = find_issued(views[found.culprit.ranks[0]], group, found.shift.seq) or found.culprit.op
        their = find_issued(views[other.ranks[0]], group, found.shift.seq) or other.op
        return Divergence(
            group=group, seq=found.shift.seq, culprit_op=own.op.value, culprit_site=own.site,
            victim_op=their.op.value, victim_site=their.site, fact=sign_words(found.sign, found.culprit.ranks),
        )  # fmt: skip
    if found.slip is not None:
        guilty = found.culprit.ranks[0]
        mine = find_issued(views[guilty], group, found.slip.seq)
        theirs = find_issued(views[other.ranks[0]], group, found.slip.seq)
        if mine is not None and theirs is not None:
            clock = found.slip.clock
            ahead, usual = found.slip.value + found.slip.offset, found.slip.value
            fact = f"{ranks_words(found.slip.ranks)} at {clock} {ahead}, others at {clock} {usual}"
            return Divergence(
                group=group, seq=found.slip.seq, culprit_op=mine.op.value, culprit_site=mine.site,
                victim_op=theirs.op.value, victim_site=theirs.site, fact=fact,
            )  # fmt: skip
    return Divergence(
        group=group, seq=seq, culprit_op=found.culprit.op.op.value, culprit_site=found.culprit.op.site,
        victim_op=other.op.op.value, victim_site=other.op.site,
        fact=sign_words(found.sign, found.culprit.ranks),
    )  # fmt: skip


def _evidence(views: Mapping[int, RankView], found: Parting, blocks: Sequence[Block]) -> tuple[Evidence, ...]:
    facts = [block_evidence(block) for block in blocks[:16]]
    if found.counts:
        facts += [
            Evidence(source="ring", rank=rank, fact=f"drew {count} batches in this pass")
            for rank, count in list(found.counts.items())[:16]
        ]
        facts += bucket_evidence(views, found.counts)
    for side in found.sides:
        facts += source_evidence(views[side.ranks[0]], side.site)
    return tuple(facts)


def shift_call(shift: Shift, condition: str, *, decided: bool = True) -> str:
    """Return which call was skipped or made too often. Not `decided`: the other ranks may have made the mistake."""
    call = f"{shift.op.op.value}{f' of {shift.op.label}' if shift.op.label else ''}{at_line(shift.op.site)}"
    if shift.caller is not None:
        call += f", called{at_line(shift.caller)}"
    if condition:
        call += f" {lies_words(condition)}"
    if shift.count > 1:
        call = f"{shift.count} calls, beginning with {call}"
    ago = f" {seconds_words(shift.op.age_s)} ago" if shift.op.age_s else ""
    if shift.skipped > 0:
        return f"{'skipped' if decided else 'did not make'} {call}{ago}, which the other ranks called"
    return f"{'made' if shift.count > 1 else 'called'} {call}{ago}, which the other ranks did not"


def shift_words(found: Parting, shift: Shift) -> str:
    """Return which call was skipped or made too often before the hang, and what came of it."""
    own = ranks_words(found.culprit.ranks)
    call = shift_call(shift, found.condition, decided=found.decided)
    either = "" if found.decided else f" {either_shifted(own, shift)}"
    return (
        f"It began earlier, at operation #{shift.seq}: {own} {call}.{either} Equal calls pair silently, so each later "
        "call was paired with the wrong call of the other ranks."
    )


def either_shifted(own: str, shift: Shift) -> str:
    """Return the two mistakes that a shift may have come of."""
    if shift.skipped > 0:
        return f"Either {own} skipped it, or it is one too many on the other ranks."
    return "Either it is one too many, or the other ranks skipped it."
