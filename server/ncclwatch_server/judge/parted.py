"""Proven hangs: ranks that entered different operations, and ranks that wait for each other in a circle."""

from collections.abc import Mapping

from ncclwatch.contract.model import (
    CallSite,
    Cause,
    Certainty,
    Divergence,
    Evidence,
    RankView,
    Severity,
    Verdict,
)
from ncclwatch.contract.text import ADVICE, ranks_words, seconds_words
from ncclwatch_server.judge.alignment import Shift
from ncclwatch_server.judge.case import (
    Case,
    at,
    block_evidence,
    counts_words,
    culprit,
    explained,
    group_words,
    onset_s,
    op_words,
    source_evidence,
    wait_words,
    waiting_words,
)
from ncclwatch_server.judge.graph import Mismatch, cycle, is_likely_only, victims_of, waited_for
from ncclwatch_server.judge.history import Slip
from ncclwatch_server.judge.sides import Parting, Side, odd_side, part, uneven_counts
from ncclwatch_server.judge.source import rank_condition
from ncclwatch_server.judge.standing import Block, find_issued

ORDER_S = 8.0  # streams of one device may run side by side; hardly for so long without any getting on


def mismatches(case: Case) -> tuple[Verdict, ...]:
    """Judge collectives that members entered with different signatures; the earliest one decides."""
    if not case.graph.mismatches:
        return ()
    first = min(case.graph.mismatches, key=lambda each: -onset_s(_blocks_in(case, each)))
    return (judge_mismatch(case, first),)


def _blocks_in(case: Case, mismatch: Mismatch) -> list[Block]:
    return [b for each in case.found.values() for b in each.blocks if b.operation == mismatch.operation]


def judge_mismatch(case: Case, mismatch: Mismatch) -> Verdict:
    """Return the verdict on one collective that was entered with different signatures."""
    views, operation = case.views, mismatch.operation
    sides = tuple(_side(case, ranks, operation.group, operation.seq) for ranks in mismatch.sides)
    found = part(views, sides, operation.members)
    blocks = [block for rank in case.blocked for block in case.found[rank].blocks]
    involved = [block for block in blocks if block.operation == operation] or blocks
    guilty = found.culprit.ranks if not found.one_of else tuple(r for side in sides for r in side.ranks)
    victims = tuple(sorted({*victims_of(case.graph, guilty), *(r for s in sides for r in s.ranks)} - set(guilty)))
    return Verdict(
        cause=found.cause,
        certainty=Certainty.PROVEN,
        severity=Severity.CRITICAL,
        summary=_summary(case, found, sides),
        explanation=_explanation(case, found, operation.group, operation.seq),
        advice=ADVICE[found.cause],
        culprits=tuple(
            culprit(views[rank], _site_of(case, rank, side, found.shift), f"in {op_words(side.op)}")
            for side in sides
            for rank in side.ranks
            if rank in guilty
        ),
        victims=victims,
        one_of=found.one_of,
        group=operation.group,
        seq=operation.seq,
        op=found.culprit.op.op.value,
        onset_s=onset_s(involved),
        explained=explained(case, {*guilty, *victims}),
        first_divergence=_divergence(views, found, operation.group, operation.seq),
        evidence=_evidence(views, found, involved),
    )


def _side(case: Case, ranks: tuple[int, ...], group: str, seq: int) -> Side:
    op = next(op for rank in ranks if (op := find_issued(case.views[rank], group, seq)) is not None)
    block = _block_of(case, ranks[0], group, seq)
    return Side(ranks=ranks, op=op, site=(block.wait.site if block else None) or op.site)


def _block_of(case: Case, rank: int, group: str, seq: int) -> Block | None:
    found = (b for b in case.found[rank].blocks if (b.operation.group, b.operation.seq) == (group, seq))
    return next(found, None)


def _site_of(case: Case, rank: int, side: Side, shift: Shift | None) -> CallSite | None:
    if shift is not None and shift.skipped < 0:
        return shift.op.site  # the call too many is the mistake; where it stands now is a consequence
    block = _block_of(case, rank, side.op.group, side.op.seq)
    return (block.wait.site if block else None) or side.site


def _summary(case: Case, found: Parting, sides: tuple[Side, ...]) -> str:
    lead = "one of: " if found.one_of else ""
    own = found.culprit
    where = f"{lead}{ranks_words(own.ranks)} {_is(own)} in {own.op.op.value}{at(own.site)}"
    if found.condition and not found.condition_on_others and found.shift is None:
        where += f", under `{found.condition}`"
    rest = ", ".join(
        f"{ranks_words(side.ranks)} {_is(side)} in {side.op.op.value}{at(side.site)}" for side in found.others
    )
    hosts = {case.views[rank].host for rank in own.ranks}
    host = f" (host {hosts.pop()})" if len(hosts) == 1 and len({v.host for v in case.views.values()}) > 1 else ""
    if found.shift is not None:
        return f"{ranks_words(own.ranks)}{host} {_shift_call(found, found.shift)}. Now {where}, while {rest}."
    return f"{where}{host}, while {rest}. They can never meet."


def _is(side: Side) -> str:
    return "is" if len(side.ranks) == 1 else "are"


def _explanation(case: Case, found: Parting, group: str, seq: int) -> str:
    own = ranks_words(found.culprit.ranks)
    first = (
        f"Operation #{seq} of {group_words(case.views, group)} is {op_words(found.culprit.op)} for {own} and "
        f"{' or '.join(sorted({op_words(side.op) for side in found.others}))} for the others; "
        "a collective completes only when all members make the same call."
    )
    return f"{first} {_reason(found, own)}".strip()


def _reason(found: Parting, own: str) -> str:
    if found.cause is Cause.UNEVEN_BATCHES and found.counts:
        fewest = [rank for rank, count in found.counts.items() if count == min(found.counts.values())]
        return (
            f"Batches drawn in this epoch: {counts_words(found.counts)}. {ranks_words(fewest).capitalize()} ran out of "
            "data first and went on."
        )
    if found.cause is Cause.UNEVEN_BATCHES:
        return f"{own.capitalize()} came to the end of the loop `{found.loop}` before the others."
    if found.slip is not None:
        return _slip_words(found, found.slip, own)
    if found.shift is not None:
        return _shift_words(found, found.shift, own)
    if found.condition:
        whose = "The others' call" if found.condition_on_others else "That call"
        return f"{whose} is made under `{found.condition}`, so not by all ranks."
    if found.loop:
        ways = f", which has a way out that each rank takes on its own ({found.escapes[0]})" if found.escapes else ""
        return f"One side has left the loop `{found.loop}`{ways}; the other is still in it."
    if found.cause is Cause.SIGNATURE_MISMATCH:
        return "All ranks are at the same call, but not with the same arguments."
    if found.one_of:
        return f"{found.why_culprit.capitalize()}."
    return f"Why {own}: {found.why_culprit}."


def _slip_words(found: Parting, slip: Slip, own: str) -> str:
    ahead = f"{ranks_words(slip.ranks)} was at {slip.clock} {slip.value + slip.offset} and the others at {slip.value}"
    after = "Each later call was matched with the wrong one of the others."
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


def _shift_call(found: Parting, shift: Shift) -> str:
    call = f"{shift.op.op.value}{at(shift.op.site)}"
    if found.condition:
        call += f", under `{found.condition}`,"
    if shift.count > 1:
        call = f"{shift.count} calls, beginning with {call}"
    ago = f" {seconds_words(shift.op.age_s)} ago" if shift.op.age_s else ""
    if shift.skipped > 0:
        return f"skipped {call}{ago}, which the others made"
    return f"made {call}{ago}, which the others did not"


def _shift_words(found: Parting, shift: Shift, own: str) -> str:
    return (
        f"It began earlier, at operation #{shift.seq}: {own} {_shift_call(found, shift)}. Equal calls pair silently, "
        "so each later one was matched with the wrong one of the others."
    )


def _divergence(views: Mapping[int, RankView], found: Parting, group: str, seq: int) -> Divergence:
    other = max(found.others, key=lambda side: len(side.ranks))
    if found.shift is not None:
        own = find_issued(views[found.culprit.ranks[0]], group, found.shift.seq) or found.culprit.op
        their = find_issued(views[other.ranks[0]], group, found.shift.seq) or other.op
        return Divergence(
            group=group, seq=found.shift.seq, culprit_op=own.op.value, culprit_site=own.site,
            victim_op=their.op.value, victim_site=their.site, fact=found.why_culprit,
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
        fact=found.why_culprit,
    )  # fmt: skip


def _evidence(views: Mapping[int, RankView], found: Parting, blocks: list[Block]) -> tuple[Evidence, ...]:
    facts = [block_evidence(block) for block in blocks[:16]]
    if found.counts:
        facts += [
            Evidence(source="ring", rank=rank, fact=f"drew {count} batches in this pass")
            for rank, count in list(found.counts.items())[:16]
        ]
    for side in (found.culprit, *found.others):
        facts += source_evidence(views[side.ranks[0]], side.site)
    return tuple(facts)


def deadlocks(case: Case) -> tuple[Verdict, ...]:
    """Judge ranks that wait for each other in a circle, across groups or in send and recv."""
    circle = cycle(case.graph)
    blocks = [block for rank in circle for block in case.graph.blocks[rank]]
    likely = is_likely_only(case.graph, circle)
    if not circle or (likely and onset_s(blocks) < ORDER_S):
        return ()
    sides = _sides_of(blocks)
    cause, guilty, one_of, reason = _why_circle(case, sides, blocks)
    victims = tuple(sorted({*victims_of(case.graph, circle), *circle} - set(guilty)))
    first = next(block for block in blocks if block.rank in guilty)
    return (
        Verdict(
            cause=cause,
            certainty=Certainty.STALLED if likely else Certainty.PROVEN,
            severity=Severity.CRITICAL,
            summary=f"{ranks_words(circle)} wait for each other: {waiting_words(case.views, blocks)}.",
            explanation=f"{_circle_words(case, blocks)} No rank of the circle can go on before another does. {reason}",
            advice=ADVICE[cause],
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
    if any(block.wait.op.is_p2p for block in blocks):
        return _why_p2p(blocks, everyone)
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
    return Cause.COLLECTIVE_ORDER, everyone, False, order


def _why_p2p(blocks: list[Block], everyone: tuple[int, ...]) -> tuple[Cause, tuple[int, ...], bool, str]:
    """Return who addresses the wrong rank, if some rank that wants to meet it waits in vain; else all of them."""
    p2p = [block for block in blocks if block.wait.op.is_p2p]
    wanted_by = {block.wait.peer: block.rank for block in p2p}
    misled = tuple(b.rank for b in p2p if wanted_by.get(b.rank, b.wait.peer) != b.wait.peer)
    if misled and len(misled) < len(p2p):
        first = next(block for block in p2p if block.rank == misled[0])
        reason = (
            f"Rank {first.rank} names rank {first.wait.peer}, while rank {wanted_by[first.rank]} is the one that "
            f"waits for it."
        )
        return Cause.P2P_DEADLOCK, misled, False, reason
    return Cause.P2P_DEADLOCK, everyone, False, "Each side of a send or recv needs the other to be there first."


def _circle_words(case: Case, blocks: list[Block]) -> str:
    phrases = []
    for block in blocks[:6]:
        absent = sorted({rank for rank in waited_for(case.graph, block) if rank != block.rank})
        phrases.append(
            f"rank {block.rank} is in {wait_words(block.wait)} of {group_words(case.views, block.operation.group)} and "
            f"needs {ranks_words(absent)} there"
        )
    return f"{'; '.join(phrases).capitalize()}."
