"""Ranks that wait for each other in a circle: across groups, in send and recv, or from two threads."""

from collections.abc import Iterable

from ncclwatch.contract.model.rank import CallSite, Op, OpView, WaitKind
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, ADVICE_LOCK, ranks_words
from ncclwatch_server.judge.rules.alike import ALIKE_MAX, joined
from ncclwatch_server.judge.rules.reasons import handled_words
from ncclwatch_server.judge.theory.case import (
    Case,
    at,
    block_evidence,
    counts_words,
    culprit,
    explained,
    group_words,
    onset_s,
    source_evidence,
    wait_words,
    waiting_words,
)
from ncclwatch_server.judge.theory.histories.call_sites import rank_condition
from ncclwatch_server.judge.theory.histories.exceptions import astray
from ncclwatch_server.judge.theory.histories.habits import departure
from ncclwatch_server.judge.theory.histories.odd_side import Side, odd_side, uneven_counts, who_shifted
from ncclwatch_server.judge.theory.histories.skipped_calls import find_shift
from ncclwatch_server.judge.theory.moments import has_lasted
from ncclwatch_server.judge.theory.waits.proof import held_together, may_end
from ncclwatch_server.judge.theory.waits.rank_standing import Block
from ncclwatch_server.judge.theory.waits.wait_graph import cycles, is_likely_only, victims_of, waited_for

ORDER_S = 8.0  # streams of one device may run side by side; hardly for so long without any getting on

HABIT_MIN = 3  # times two ranks have met before, that make their next meeting a habit


def deadlocks(case: Case) -> tuple[Verdict, ...]:
    """Judge a circle of ranks that wait for each other, across groups or in send and recv, with all at its lines."""
    held = case.told | case.explained
    left = [circle for circle in cycles(case.graph) if held.isdisjoint(circle) and _holds(case, circle)]
    if not left:
        return ()
    lines = _lines_of(case, left[0])
    alike = [circle for circle in left if _lines_of(case, circle) == lines]
    more = (rank for circle in alike[ALIKE_MAX:] for rank in circle)
    return (joined(case, [_judge(case, circle) for circle in alike[:ALIKE_MAX]], more),)


def _blocks_of(case: Case, circle: Iterable[int]) -> list[Block]:
    return [block for rank in circle for block in case.graph.blocks[rank]]


def _lines_of(case: Case, circle: Iterable[int]) -> frozenset[tuple[WaitKind, Op, CallSite | None]]:
    return frozenset((block.wait.kind, block.wait.op, block.wait.site) for block in _blocks_of(case, circle))


def _holds(case: Case, circle: Iterable[int]) -> bool:
    """Say whether a circle was there at one instant, and for long enough if that it never ends is only likely."""
    blocks = _blocks_of(case, circle)
    return held_together(case.views, blocks) and (
        not _is_likely(case, circle) or has_lasted(case.views, blocks, ORDER_S)
    )


def _is_likely(case: Case, circle: Iterable[int]) -> bool:
    # Keys of the store may be set from outside of the job as well.
    return is_likely_only(case.graph, circle) or any(
        block.wait.kind is WaitKind.STORE or may_end(case.views, case.graph, block)
        for block in _blocks_of(case, circle)
    )


def _judge(case: Case, circle: tuple[int, ...]) -> Verdict:
    blocks = _blocks_of(case, circle)
    sides = _sides_of(blocks)
    cause, guilty, one_of, reason = _why_circle(case, sides, blocks)
    victims = tuple(sorted({*victims_of(case.graph, circle), *circle} - set(guilty)))
    first = next(block for block in blocks if block.rank in guilty)
    return Verdict(
        cause=cause,
        certainty=Certainty.STALLED if _is_likely(case, circle) else Certainty.PROVEN,
        severity=Severity.CRITICAL,
        summary=f"{ranks_words(circle)} wait for each other: {waiting_words(case.views, blocks)}.",
        explanation=f"{_circle_words(case, blocks)} No rank of the circle can go on before another does. {reason}",
        advice=ADVICE_LOCK if cause is Cause.HOST_STALL else ADVICE[cause],
        culprits=tuple(
            culprit(case.views[block.rank], block.wait.site, f"in {wait_words(block.wait)}")
            for block in blocks
            if block.rank in guilty
        ),
        victims=victims,
        one_of=one_of,
        group=first.operation.group,
        seq=first.operation.seq,
        op=first.wait.op.value,
        onset_s=onset_s(blocks),
        explained=explained(case, {*circle, *victims}),
        evidence=tuple(
            [*(block_evidence(block) for block in blocks[:16])]
            + [fact for block in blocks[:4] for fact in source_evidence(case.views[block.rank], block.wait.site)]
        ),
    )


def _sides_of(blocks: list[Block]) -> tuple[Side, ...]:
    by_operation: dict[tuple[str, int, int, int], list[Block]] = {}
    for block in blocks:
        operation = block.operation
        key = (operation.group, operation.seq, operation.source, operation.target)
        by_operation.setdefault(key, []).append(block)
    sides = []
    for found in by_operation.values():
        issued = next((block.issued for block in found if block.issued is not None), None)
        if issued is not None:
            ranks = tuple(sorted({block.rank for block in found}))
            sides.append(Side(ranks=ranks, op=issued, site=found[0].wait.site or issued.site))
    return tuple(sides)


def _why_circle(case: Case, sides: tuple[Side, ...], blocks: list[Block]) -> tuple[Cause, tuple[int, ...], bool, str]:
    """Return (cause, culprits, whether undecided, reason in words)."""
    everyone = tuple(sorted({block.rank for block in blocks}))
    by_kind = _why_by_kind(case, blocks, everyone) or _why_out_of_step(case, blocks)
    if by_kind is not None:
        return by_kind
    if any(block.wait.op.is_p2p for block in blocks):
        return _why_p2p(case, blocks, everyone)
    if len(sides) < 2:
        return Cause.COLLECTIVE_ORDER, everyone, False, ""
    side, why, decided = odd_side(case.views, sides, None)
    others = [other for other in sides if other is not side]
    for other in others:
        counts = uneven_counts(case.views, side.ranks, other.ranks)
        if counts is not None:
            return Cause.UNEVEN_BATCHES, side.ranks, False, f"Batches drawn: {counts_words(counts)}."
    for each in (side, *others):
        note = rank_condition(case.views[each.ranks[0]], each.site, each.op.op.value)
        if note is not None and not note.branch_ops[1:]:
            reason = f"{ranks_words(each.ranks).capitalize()}: that call is made under `{note.condition}`."
            return Cause.RANK_CONDITIONAL_COLLECTIVE, each.ranks, False, reason
    order = "The groups are used in different orders on different ranks."
    if decided and why.startswith(("it departs", "it differs")):
        return Cause.COLLECTIVE_ORDER, side.ranks, False, f"{order} {ranks_words(side.ranks).capitalize()}: {why}."
    departed = _why_departed(case, everyone)
    if departed is not None:
        return Cause.COLLECTIVE_ORDER, departed[0], False, f"{order} {departed[1]}"
    return Cause.COLLECTIVE_ORDER, everyone, False, order


def _why_by_kind(
    case: Case, blocks: list[Block], everyone: tuple[int, ...]
) -> tuple[Cause, tuple[int, ...], bool, str] | None:
    """Return why, where what the ranks hold or wait in says it; None for a circle of collectives."""
    strays = astray(case.views, everyone)
    if strays:
        reason = " ".join(handled_words(each) for each in strays)
        return Cause.SWALLOWED_EXCEPTION, tuple(each.rank for each in strays), False, reason
    locks = [block for block in blocks if block.wait.kind is WaitKind.LOCK]
    if locks:
        holders = tuple(sorted({block.operation.target for block in locks}))
        reason = f"{ranks_words(holders).capitalize()} went into a wait for others with the lock in hand."
        return Cause.HOST_STALL, holders, False, reason
    keys = [block for block in blocks if block.wait.kind is WaitKind.STORE]
    if keys:
        return _why_keys(keys, everyone)
    making = [block for block in blocks if block.wait.kind in (WaitKind.NEW_GROUP, WaitKind.INIT)]
    if making:
        return _why_making(case, making, everyone)
    return None


def _why_out_of_step(case: Case, blocks: list[Block]) -> tuple[Cause, tuple[int, ...], bool, str] | None:
    """Return who left a call out, or made one too many, in a group of the circle; None if all have kept in step.

    Equal calls pair silently, so a circle may close long after, and in other groups than the mistake was made in.
    """
    operations = {block.operation.group: block.operation for block in blocks if not block.wait.op.is_p2p}
    for group, operation in operations.items():
        shift = find_shift(case.views, group, operation.members)
        shifted = who_shifted(case.views, operation.members, shift) if shift is not None else None
        if shifted is None:
            continue
        call = f"{shifted.op.op.value} of {group_words(case.views, group)}{at(shifted.op.site)}"
        what = f"left out {call}, which the others made" if shifted.skipped > 0 else f"made {call}, and no other did"
        reason = (
            f"It began at operation #{shifted.seq} of {group_words(case.views, group)}: {ranks_words(shifted.ranks)} "
            f"{what}. Equal calls pair silently, so each later one was matched with the wrong one of the others."
        )
        return Cause.DIVERGENT_CONTROL_FLOW, shifted.ranks, False, reason
    return None


def _why_making(case: Case, making: list[Block], everyone: tuple[int, ...]) -> tuple[Cause, tuple[int, ...], bool, str]:
    """Return who makes a group alone, or who stays away where most make one: all ranks of the job have to call it."""
    makers = tuple(sorted({block.rank for block in making}))
    others = tuple(rank for rank in everyone if rank not in makers)
    if len(makers) > len(others) > 0:
        reason = f"{ranks_words(others).capitalize()} stayed away from a call that all ranks of the job have to make."
        return Cause.INIT_INCOMPLETE, others, False, reason
    what = wait_words(making[0].wait)
    note = rank_condition(case.views[makers[0]], making[0].wait.site, what)
    if note is None:
        reason = f"All ranks of the job have to call {what}, also those that will not be in the group."
        return Cause.INIT_INCOMPLETE, makers, False, reason
    reason = f"That {what} is called under `{note.condition}`, and all ranks of the job have to call it."
    return Cause.RANK_CONDITIONAL_COLLECTIVE, makers, False, reason


def _why_keys(keys: list[Block], everyone: tuple[int, ...]) -> tuple[Cause, tuple[int, ...], bool, str]:
    """Return who should have set a key: those who went on, where fewer did than wait for it."""
    waiters = tuple(sorted({block.rank for block in keys}))
    others = tuple(rank for rank in everyone if rank not in waiters)
    what = (
        f"{ranks_words(waiters).capitalize()} {'waits' if len(waiters) == 1 else 'wait'} for a key that nobody has set"
    )
    if 0 < len(others) < len(waiters):
        reason = f"{what}, and {ranks_words(others)} went on without setting it."
        return Cause.DIVERGENT_CONTROL_FLOW, others, False, reason
    return Cause.DIVERGENT_CONTROL_FLOW, everyone, True, f"{what}; who should have set it is not recorded."


def _why_p2p(case: Case, blocks: list[Block], everyone: tuple[int, ...]) -> tuple[Cause, tuple[int, ...], bool, str]:
    """Return who addresses the wrong rank, if some rank that wants to meet it waits in vain, or who left its habit."""
    p2p = [block for block in blocks if block.wait.op.is_p2p]
    strange = _first_time(p2p)
    if strange:
        first = strange[0]
        reason = (
            f"Rank {first.rank} has never before made {wait_words(first.wait)}; the others do what they did "
            f"{min(block.wait.seq for block in p2p if block not in strange) - 1} times before."
        )
        return Cause.P2P_DEADLOCK, tuple(block.rank for block in strange), False, reason
    # Who waits for a rank to receive, while that one does receive, from another. To wait in line is no mistake.
    kinds = {block.rank: block.wait.kind for block in p2p}
    meets = {b.wait.peer: b.rank for b in p2p if kinds.get(b.wait.peer, b.wait.kind) is not b.wait.kind}
    misled = tuple(b.rank for b in p2p if b.rank in meets and meets[b.rank] != b.wait.peer)
    if misled and len(misled) < len(p2p):
        first = next(block for block in p2p if block.rank == misled[0])
        reason = (
            f"Rank {first.rank} names rank {first.wait.peer}, while rank {meets[first.rank]} is the one that "
            f"waits for it."
        )
        return Cause.P2P_DEADLOCK, misled, False, reason
    departed = _why_departed(case, everyone)
    if departed is not None:
        ranks, reason, usual = departed
        cause = Cause.P2P_DEADLOCK if usual.op.is_p2p else Cause.DIVERGENT_CONTROL_FLOW
        return cause, ranks, False, reason
    return Cause.P2P_DEADLOCK, everyone, False, "Each side of a send or recv needs the other to be there first."


def _why_departed(case: Case, everyone: tuple[int, ...]) -> tuple[tuple[int, ...], str, OpView] | None:
    """Return (ranks, reason in words, what they used to do) where a minority of a circle broke what it repeated.

    Where most did, it may be the others who stayed away from what was due.
    """
    found = {rank: each for rank in everyone if (each := departure(case.views[rank])) is not None}
    if not 0 < len(found) * 2 <= len(everyone):
        return None
    first = next(iter(found.values()))
    reason = (
        f"{ranks_words(tuple(found)).capitalize()} came to {first.op.op.value}{at(first.op.site)} where it made "
        f"{first.usual.op.value}{at(first.usual.site)} in its earlier iterations; the "
        "others of the circle kept to theirs."
    )
    return tuple(found), reason, first.usual


def _first_time(p2p: list[Block]) -> list[Block]:
    """Return the waits of a circle that were never made before, if the others have been through many times."""
    strange = [block for block in p2p if block.wait.seq <= 1]
    settled = all(block.wait.seq > HABIT_MIN for block in p2p if block not in strange)
    return strange if strange and settled and len(strange) < len(p2p) else []


def _circle_words(case: Case, blocks: list[Block]) -> str:
    phrases = []
    for block in blocks[:6]:
        absent = sorted({rank for rank in waited_for(case.graph, block) if rank != block.rank})
        if block.wait.kind is WaitKind.LOCK:
            phrases.append(
                f"rank {block.rank} waits for the lock on {block.wait.label or 'a file'}, which {ranks_words(absent)} "
                f"hold{'s' if len(absent) == 1 else ''}"
            )
            continue
        if block.wait.kind is WaitKind.STORE:
            phrases.append(f"rank {block.rank} is in {wait_words(block.wait)} and needs another rank to set its key")
            continue
        if block.wait.kind in (WaitKind.NEW_GROUP, WaitKind.INIT):
            phrases.append(f"rank {block.rank} is in {wait_words(block.wait)} and needs {ranks_words(absent)} there")
            continue
        phrases.append(
            f"rank {block.rank} is in {wait_words(block.wait)} of {group_words(case.views, block.operation.group)} and "
            f"needs {ranks_words(absent)} there"
        )
    return f"{'; '.join(phrases).capitalize()}."
