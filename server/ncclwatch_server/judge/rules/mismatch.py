"""Proven hangs: collectives that ranks entered with different signatures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import CallSite, Op, RankView
from ncclwatch.contract.model.verdict import Cause, Certainty, Divergence, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.rules.alike import ALIKE_MAX, joined
from ncclwatch_server.judge.rules.data_buckets import bucket_evidence
from ncclwatch_server.judge.rules.forwards import OneSided, one_sided_forward, remedies, words
from ncclwatch_server.judge.rules.reasons import advice, reason, shift_call
from ncclwatch_server.judge.theory.case import (
    Case,
    at,
    block_evidence,
    culprit,
    explained,
    group_words,
    onset_s,
    op_words,
    source_evidence,
)
from ncclwatch_server.judge.theory.histories.odd_side import Parting, Side, parted_callers, partings
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation, find_issued
from ncclwatch_server.judge.theory.waits.wait_graph import Mismatch, victims_of


def mismatches(case: Case) -> tuple[Verdict, ...]:
    """Judge the oldest collective that members entered with different signatures, with all that differ at its lines."""
    left = [each for each in case.graph.mismatches if case.told.isdisjoint(r for side in each.sides for r in side)]
    if not left:
        return ()
    blocks: dict[Operation, list[Block]] = {}
    for block in (block for each in case.found.values() for block in each.blocks):
        blocks.setdefault(block.operation, []).append(block)
    left.sort(key=lambda each: -onset_s(blocks.get(each.operation, ())))
    lines = _lines_of(case, left[0])
    alike = [each for each in left if _lines_of(case, each) == lines]
    more = (rank for each in alike[ALIKE_MAX:] for side in each.sides for rank in side)
    first, *others = (judge_mismatch(case, each) for each in alike[:ALIKE_MAX])
    return (joined(case, [first[0], *(each[0] for each in others)], more), *first[1:])


def _lines_of(case: Case, mismatch: Mismatch) -> frozenset[tuple[Op, CallSite | None]]:
    """Return what the sides of a mismatch call, and where."""
    sides = (_side(case, ranks, mismatch.operation.group, mismatch.operation.seq) for ranks in mismatch.sides)
    return frozenset((side.op.op, side.site) for side in sides)


def judge_mismatch(case: Case, mismatch: Mismatch) -> tuple[Verdict, ...]:
    """Return the verdicts on one collective that was entered with different signatures: one for each cause of it."""
    views, operation = case.views, mismatch.operation
    sides = tuple(_side(case, ranks, operation.group, operation.seq) for ranks in mismatch.sides)
    together: dict[tuple[object, ...], list[_Parted]] = {}
    for found in partings(views, sides, operation.members):
        each = _parted(views, found)
        own = found.shift is not None or found.slip is not None or each.forward is not None
        together.setdefault((each.parting.cause, found.culprit if own else ()), []).append(each)
    odd = {rank for parted in together.values() for each in parted for rank in each.parting.culprit.ranks}
    return tuple(_judge(case, operation, (sides, odd), parted) for parted in together.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parted:
    """How one side of a mismatch parted from the others, and the forward that it was in."""

    parting: Parting
    forward: OneSided | None


def _parted(views: Mapping[int, RankView], found: Parting) -> _Parted:
    forward = one_sided_forward(views, found)
    if forward is not None and found.cause is Cause.UNEVEN_BATCHES:  # a loop inside of the forward is none over data
        found = replace(found, cause=Cause.DIVERGENT_CONTROL_FLOW)
    return _Parted(parting=found, forward=forward)


def _judge(
    case: Case, operation: Operation, entered: tuple[tuple[Side, ...], set[int]], parted: list[_Parted]
) -> Verdict:
    """Return the verdict on the sides of a mismatch that parted from the others for one cause.

    `entered` are all sides, and the ranks of those that have parted, for whatever cause.
    """
    sides, odd = entered
    views, found, forward = case.views, parted[0].parting, parted[0].forward
    blocks = [block for rank in case.blocked for block in case.found[rank].blocks]
    involved = [block for block in blocks if block.operation == operation] or blocks
    guilty = tuple(rank for each in parted for rank in each.parting.culprit.ranks)
    if found.one_of:
        guilty = tuple(r for side in sides for r in side.ranks)
    victims = tuple(sorted({*victims_of(case.graph, guilty), *(r for s in sides for r in s.ranks)} - odd.union(guilty)))
    return Verdict(
        cause=found.cause,
        certainty=Certainty.PROVEN,
        severity=Severity.CRITICAL,
        summary=_summary(case, [each.parting for each in parted]),
        explanation=_explanation(case, operation, parted, forward),
        advice=remedies(forward) if forward is not None and forward.explains(found) else advice(found),
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


def _summary(case: Case, parted: list[Parting]) -> str:
    found = parted[0]
    own = found.culprit
    lead = "one of: " if found.one_of else ""
    where = lead + ", ".join(_where(case, each) for each in parted)
    rest = ", ".join(_standing(case.views, side, (own,)) for side in found.others)
    hosts = {case.views[rank].host for rank in own.ranks}
    host = f" (host {hosts.pop()})" if len(hosts) == 1 and len({v.host for v in case.views.values()}) > 1 else ""
    if found.shift is not None:
        return f"{ranks_words(own.ranks)}{host} {shift_call(found, found.shift)}. Now {where}, while {rest}."
    return f"{where}{host}, while {rest}. They can never meet."


def _where(case: Case, found: Parting) -> str:
    where = _standing(case.views, found.culprit, found.others)
    if found.condition and not found.condition_on_others and found.shift is None:
        where += f", under `{found.condition}`"
    return where


def _standing(views: Mapping[int, RankView], side: Side, others: tuple[Side, ...]) -> str:
    """Return who stands where; who stands in a helper that the others stand in too, with the caller that differs."""
    callers = next((pair for other in others if (pair := parted_callers(views, side, other))), None)
    caller = f", called{at(callers[0])}" if callers is not None else ""
    return f"{ranks_words(side.ranks)} {_is(side)} in {side.op.op.value}{at(side.site)}{caller}"


def _is(side: Side) -> str:
    return "is" if len(side.ranks) == 1 else "are"


def _explanation(case: Case, operation: Operation, parted: list[_Parted], forward: OneSided | None) -> str:
    found = parted[0].parting
    own = ", ".join(
        f"{op_words(each.parting.culprit.op)} for {ranks_words(each.parting.culprit.ranks)}" for each in parted
    )
    first = (
        f"Operation #{operation.seq} of {group_words(case.views, operation.group)} is {own} and "
        f"{' or '.join(sorted({op_words(side.op) for side in found.others}))} for the others; "
        "a collective completes only when all members make the same call."
    )
    told = [first, *dict.fromkeys(reason(each.parting) for each in parted)]
    if forward is not None:
        if forward.others_now is not None and found.loop:
            told.pop()  # that a side has left the loop inside of a forward is what its mode did
        told.append(words(forward))
    return " ".join(each for each in told if each)


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
        facts += bucket_evidence(views, found.counts)
    for side in (found.culprit, *found.others):
        facts += source_evidence(views[side.ranks[0]], side.site)
    return tuple(facts)
