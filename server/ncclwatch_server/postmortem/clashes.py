"""Ranks that entered different operations, wait for each other in a circle, or are all inside.

Which side is wrong is the same question as in a live job, so the same judge answers it, on whole views of
the ranks concerned.
"""

from collections.abc import Iterable
from dataclasses import replace

from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, ranks_words, seconds_words
from ncclwatch_server.judge.rules.circles import deadlocks
from ncclwatch_server.judge.rules.mismatch import judge_mismatch
from ncclwatch_server.judge.theory.case import open_case
from ncclwatch_server.judge.theory.histories.signatures import compatible
from ncclwatch_server.judge.theory.waits.rank_standing import Operation
from ncclwatch_server.judge.theory.waits.wait_graph import Mismatch
from ncclwatch_server.offline.recording import Issued
from ncclwatch_server.postmortem.frontier import DEFAULT_GROUP, Stuck
from ncclwatch_server.postmortem.matter import (
    Matter,
    Waited,
    at,
    stuck_words,
    waited,
    waiting_evidence,
    waiting_words,
)
from ncclwatch_server.postmortem.roots import circle, reaching

INSIDE_S_MIN = 30.0  # a big transfer looks the same for a while
SUSPECTS_OF_A_SIDE = 4
CIRCLE_JUDGED_MAX = 64  # ranks; the judge follows each of them to all others
SUSPECTS_MAX = 64
Sides = tuple[tuple[int, ...], ...]


def mismatches(matter: Matter) -> tuple[Verdict, ...]:
    """Judge the collective that members entered with different signatures; the one waited in longest decides."""
    found = [(stuck, sides) for stuck in matter.waits.stuck if len(sides := sides_of(stuck)) > 1]
    if not found:
        return ()
    stuck, sides = max(found, key=lambda each: waited(matter, (each[0],)).seconds)
    ranks = [rank for side in sides for rank in side]
    name = matter.names[stuck.roster.key]
    case = open_case(matter.snapshot(ranks))
    operation = Operation(group=name, seq=stuck.seq, members=tuple(sorted(ranks)))
    verdict = judge_mismatch(case, Mismatch(operation=operation, sides=sides))[0]
    guilty = {each.rank for each in verdict.culprits}
    victims = sorted({*ranks, *reaching(matter.waits, ranks)} - guilty)
    return (
        _told(
            matter,
            replace(
                verdict,
                certainty=Certainty.PROVEN if _is_comparable(matter, stuck, ranks) else Certainty.STALLED,
                victims=tuple(victims),
                onset_s=waited(matter, (stuck,)).seconds,
                explained=_share(matter, {*guilty, *victims}),
            ),
        ),
    )


def suspects(matter: Matter) -> tuple[int, ...]:
    """Return some ranks of each side of a mismatch or a circle: their histories may tell who parted first."""
    found: list[int] = []
    for stuck in matter.waits.stuck:
        sides = sides_of(stuck)
        found += [rank for side in sides if len(sides) > 1 for rank in side[:SUSPECTS_OF_A_SIDE]]
    found += circle(matter.waits, ())[: 2 * SUSPECTS_OF_A_SIDE]
    return tuple(dict.fromkeys(found))[:SUSPECTS_MAX]


def _is_comparable(matter: Matter, stuck: Stuck, ranks: Iterable[int]) -> bool:
    """Say whether the numbers of these ranks are the same count: of one group, by recorders of one kind."""
    kinds = {matter.recordings[rank].source == "ring" for rank in ranks}
    return (stuck.roster.told or stuck.roster.desc == DEFAULT_GROUP) and len(kinds) == 1


def sides_of(stuck: Stuck) -> Sides:
    """Return the members by what they issued as this operation, the first side first."""
    if stuck.source >= 0:
        return ()
    issued = {rank: each for rank in stuck.roster.records if (each := _issued(stuck, rank)) is not None}
    sides: list[tuple[Issued, list[int]]] = []
    for rank, mine in sorted(issued.items()):
        known = next((ranks for other, ranks in sides if compatible(other.signature, mine.signature)), None)
        if known is None:
            sides.append((mine, [rank]))
        else:
            known.append(rank)
    if len(sides) == 1:
        roots = [rank for rank, each in issued.items() if each.signature.root]
        return tuple((rank,) for rank in sorted(roots)) if len(roots) > 1 else ()
    return tuple(tuple(ranks) for _, ranks in sides)


def _issued(stuck: Stuck, rank: int) -> Issued | None:
    """Return a collective as a member recorded it, None if it has not, or if it was overwritten."""
    if rank in stuck.waiting:
        return stuck.waiting[rank]
    return next((each for each in stuck.roster.records[rank].tail if each.seq == stuck.seq), None)


def circles(matter: Matter) -> tuple[Verdict, ...]:
    """Judge ranks that need each other, each in another operation."""
    ranks = circle(matter.waits, ())
    if not ranks:
        return ()
    operations = _operations(matter, ranks)
    long = waited(matter, operations)
    if long.too_short:
        return ()
    if len(ranks) > CIRCLE_JUDGED_MAX:
        return (_wide_circle(matter, ranks, operations, long),)
    verdicts = deadlocks(open_case(matter.snapshot(ranks)))
    victims = reaching(matter.waits, ranks)
    on_device = all(issued.started for each in operations for issued in each.waiting.values())
    in_rings = all(rank in matter.witness.views for rank in ranks)
    return tuple(
        _told(
            matter,
            replace(
                verdict,
                # That a rank has issued an operation does not say that its thread waits there: start times do.
                certainty=Certainty.PROVEN if (on_device or in_rings) and long.known else Certainty.STALLED,
                victims=tuple(sorted({*verdict.victims, *victims})),
                explanation=verdict.explanation + _length(long),
                onset_s=long.seconds,
                explained=_share(matter, {*ranks, *victims}),
            ),
        )
        for verdict in verdicts
    )


def _wide_circle(matter: Matter, ranks: tuple[int, ...], operations: tuple[Stuck, ...], long: Waited) -> Verdict:
    """Return the verdict on a circle of more ranks than can be followed one by one: by operation."""
    usual = max(operations, key=lambda each: len(each.waiting))
    few = sorted(set(ranks) - usual.waiting.keys())
    guilty = few if len(few) < len(usual.waiting) else list(ranks)
    victims = sorted({*ranks, *reaching(matter.waits, ranks)} - set(guilty))
    stands = {rank: each for each in operations for rank in each.waiting}
    first = stands[guilty[0]]
    return Verdict(
        cause=Cause.P2P_DEADLOCK if first.source >= 0 else Cause.COLLECTIVE_ORDER,
        certainty=Certainty.STALLED,
        severity=Severity.CRITICAL,
        summary=f"{ranks_words(ranks)} wait for each other: {waiting_words(matter, operations)}.",
        explanation=f"No rank of the circle can go on before another does.{_length(long)}",
        advice=ADVICE[Cause.P2P_DEADLOCK if first.source >= 0 else Cause.COLLECTIVE_ORDER],
        culprits=tuple(
            Culprit(
                rank=rank, call_site=stands[rank].waiting[rank].site, doing=f"in {stuck_words(matter, stands[rank])}"
            )
            for rank in guilty
        ),
        victims=tuple(victims),
        group=matter.names[first.roster.key],
        seq=first.seq,
        op=first.op.value,
        onset_s=long.seconds,
        explained=_share(matter, {*guilty, *victims}),
        evidence=tuple(waiting_evidence(matter, operations)),
    )


def _operations(matter: Matter, ranks: Iterable[int]) -> tuple[Stuck, ...]:
    chosen = set(ranks)
    return tuple(each for each in matter.waits.stuck if chosen & each.waiting.keys())


def inversions(matter: Matter) -> tuple[Verdict, ...]:
    """Judge groups that ranks use in different orders: all have entered all, and none is through.

    On a GPU an operation waits behind the ones before it, so what is entered need not have begun.
    """
    inside = [each for each in _inside(matter) if each.roster.records]
    for number, one in enumerate(inside):
        for other in inside[number + 1 :]:
            both = sorted(one.waiting.keys() & other.waiting.keys())
            first = [rank for rank in both if one.waiting[rank].record < other.waiting[rank].record]
            rest = [rank for rank in both if rank not in first]
            long = waited(matter, (one, other))
            if first and rest and not long.too_short:
                return (_inverted(matter, (one, other), (first, rest), long),)
    return ()


def _inverted(
    matter: Matter, operations: tuple[Stuck, Stuck], orders: tuple[list[int], list[int]], long: Waited
) -> Verdict:
    one, other = operations
    few, many = sorted(orders, key=len)
    decided = len(few) < len(many)
    guilty = few if decided else sorted((*few, *many))
    victims = sorted({*few, *many, *reaching(matter.waits, guilty)} - set(guilty))
    began = "" if all(matter.recordings[rank].timing for rank in guilty) else (
        " Whether they had begun on the device is not recorded (TORCH_NCCL_ENABLE_TIMING=1 would)."
    )  # fmt: skip
    sites = [each.waiting[guilty[0]].site for each in sorted(operations, key=lambda e: e.waiting[guilty[0]].record)]
    return Verdict(
        cause=Cause.COLLECTIVE_ORDER,
        certainty=Certainty.STALLED,
        severity=Severity.CRITICAL,
        summary=(
            f"{ranks_words(orders[0])} issued {stuck_words(matter, one)} before {stuck_words(matter, other)}, "
            f"{ranks_words(orders[1])} the other way round, and none of them ends."
        ),
        explanation=(
            f"On a GPU the operation issued second waits behind the first one, which waits for the other ranks to "
            f"begin theirs.{began}{_length(long)}"
        ),
        advice=ADVICE[Cause.COLLECTIVE_ORDER],
        culprits=tuple(
            Culprit(rank=rank, call_site=sites[0], doing=f"in {stuck_words(matter, _first(operations, rank))} first")
            for rank in guilty
        ),
        victims=tuple(victims),
        group=matter.names[_first(operations, guilty[0]).roster.key],
        seq=_first(operations, guilty[0]).seq,
        op=_first(operations, guilty[0]).op.value,
        onset_s=long.seconds,
        explained=_share(matter, {*guilty, *victims}),
        evidence=tuple(waiting_evidence(matter, operations)),
    )


def _first(operations: tuple[Stuck, Stuck], rank: int) -> Stuck:
    return min(operations, key=lambda each: each.waiting[rank].record)


def insiders(matter: Matter) -> tuple[Verdict, ...]:
    """Judge operations that all members have entered with one signature, and that do not end."""
    found = _inside(matter)
    if not found:
        return ()
    stuck = max(found, key=lambda each: (waited(matter, (each,)).seconds, len(each.waiting)))
    long = waited(matter, (stuck,))
    if long.known and long.seconds < INSIDE_S_MIN:
        return ()
    inside = tuple(sorted(stuck.waiting))
    through = f"{ranks_words(stuck.done)} are through it, " if stuck.done else "every member has entered it, "
    queued = [rank for rank, issued in stuck.waiting.items() if not issued.started]
    unsure = " A kernel before it may be what hangs: start times are not recorded." if queued else ""
    return (
        Verdict(
            cause=Cause.TRANSPORT,
            certainty=Certainty.STALLED,
            severity=Severity.CRITICAL,
            summary=f"{ranks_words(inside)} are inside {stuck_words(matter, stuck)}{at(stuck.issued.site)} and it "
            "does not end.",
            explanation=(
                f"{through.capitalize()}as far as recorded with the same arguments: the code agrees (reduce ops and "
                f"roots are not recorded), the transfer does not end.{unsure}{_length(long)}"
            ),
            advice=ADVICE[Cause.TRANSPORT],
            culprits=tuple(
                Culprit(rank=rank, call_site=stuck.waiting[rank].site, doing=f"inside {stuck_words(matter, stuck)}")
                for rank in inside
            ),
            victims=reaching(matter.waits, inside),
            one_of=True,
            group=matter.names[stuck.roster.key],
            seq=stuck.seq,
            op=stuck.op.value,
            onset_s=long.seconds,
            explained=_share(matter, inside),
            evidence=tuple(waiting_evidence(matter, (stuck,))),
        ),
    )  # fmt: skip


def _inside(matter: Matter) -> list[Stuck]:
    """Return the operations that all members have entered; where members are guessed, nobody can say so."""
    return [each for each in matter.waits.stuck if not each.absent and not each.unknown and each.roster.told]


def _share(matter: Matter, ranks: Iterable[int]) -> tuple[int, int]:
    blocked = set(matter.waits.blocked)
    return len(blocked & set(ranks)), len(blocked)


def _length(long: Waited) -> str:
    if not long.known:
        return " How long it had lasted, the times of the files do not tell."
    return f" That had lasted {seconds_words(long.seconds)} when the files were written."


def _told(matter: Matter, verdict: Verdict) -> Verdict:
    """Return a verdict of the live judge with the sources of what it says: not all of it was in a ring."""
    evidence = tuple(
        replace(each, source=matter.recordings[each.rank].source)
        if each.source == "ring" and each.rank in matter.recordings
        else each
        for each in verdict.evidence
    )
    return replace(verdict, evidence=evidence)
