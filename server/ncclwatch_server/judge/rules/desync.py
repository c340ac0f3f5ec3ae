"""Have ranks issued different operations though nothing hangs? Wrong results today, and a hang to come.

Two ranks that have issued equally much in a group, with different hashes over what they issued, have differed at some
operation: a proof that needs no history. Where the history still holds it, the operation is named.
"""

from collections.abc import Mapping

from ncclwatch.contract.model.rank import OpView, RankView
from ncclwatch.contract.model.verdict import Cause, Certainty, Divergence, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, ranks_words
from ncclwatch_server.judge.theory.case import Case, at, culprit, group_words, op_words
from ncclwatch_server.judge.theory.waits.rank_standing import op_key


def desyncs(case: Case) -> tuple[Verdict, ...]:
    """Warn of the first group whose members have issued different operations."""
    names = sorted({group.name for view in case.views.values() for group in view.groups if not group.destroyed})
    for name in names:
        sides = _sides(case.views, name)
        if len(sides) > 1:
            return (_warning(case, name, sides),)
    return ()


def _sides(views: Mapping[int, RankView], name: str) -> tuple[tuple[int, ...], ...]:
    """Return ranks that have issued equally much, by their histories, the largest set first; () if nothing differs."""
    by_count: dict[int, dict[int, list[int]]] = {}
    for rank, view in sorted(views.items()):
        for group in view.groups:
            if group.name == name and group.enqueued and not (group.destroyed or group.late or view.dropped):
                by_count.setdefault(group.enqueued, {}).setdefault(group.prefix_hash, []).append(rank)
    for hashes in by_count.values():
        if len(hashes) > 1:
            return tuple(sorted((tuple(ranks) for ranks in hashes.values()), key=lambda ranks: (-len(ranks), ranks)))
    return ()


def _warning(case: Case, name: str, sides: tuple[tuple[int, ...], ...]) -> Verdict:
    usual, *others = sides
    odd = tuple(sorted(rank for ranks in others for rank in ranks))
    decided = len(usual) > len(odd)
    guilty = odd if decided else tuple(sorted((*usual, *odd)))
    found = _first_difference(case.views[usual[0]], case.views[odd[0]], name)
    group = group_words(case.views, name)
    if found is not None:
        theirs, mine = found
        what = (
            f"operation #{mine.seq} of {group} was {op_words(mine)}{at(mine.site)} for {ranks_words(odd)} and "
            f"{op_words(theirs)}{at(theirs.site)} for {ranks_words(usual)}"
        )
    else:
        what = f"an operation of {group} was not the same for {ranks_words(odd)} and {ranks_words(usual)}"
    return Verdict(
        cause=Cause.SIGNATURE_MISMATCH,
        certainty=Certainty.PROVEN,
        severity=Severity.WARNING,
        summary=f"ranks have fallen out of step without a hang: {what}.",
        explanation=(
            "What they computed there is not what the code says, and their later calls may be matched with the wrong "
            "ones. It will hang where their calls differ in kind."
        ),
        advice=ADVICE[Cause.SIGNATURE_MISMATCH],
        culprits=tuple(
            culprit(case.views[rank], found[1].site if found and rank in odd else None, "issued something else")
            for rank in guilty
        ),
        victims=tuple(rank for rank in usual if rank not in guilty),
        one_of=not decided,
        group=name,
        seq=found[1].seq if found else 0,
        op=found[1].op.value if found else "",
        first_divergence=_divergence(name, found),
        evidence=_evidence(case.views, name, sides),
    )


def _first_difference(usual: RankView, odd: RankView, name: str) -> tuple[OpView, OpView] | None:
    """Return the first operation that both remember and that differs, None if they remember none."""
    theirs = {op.seq: op for op in usual.history if op.group == name and not op.op.is_p2p}
    for mine in odd.history:
        other = theirs.get(mine.seq) if mine.group == name and not mine.op.is_p2p else None
        if other is not None and op_key(mine) != op_key(other):
            return other, mine
    return None


def _divergence(name: str, found: tuple[OpView, OpView] | None) -> Divergence | None:
    if found is None:
        return None
    theirs, mine = found
    return Divergence(
        group=name, seq=mine.seq, culprit_op=mine.op.value, culprit_site=mine.site, victim_op=theirs.op.value,
        victim_site=theirs.site, fact="they issued different operations",
    )  # fmt: skip


def _evidence(views: Mapping[int, RankView], name: str, sides: tuple[tuple[int, ...], ...]) -> tuple[Evidence, ...]:
    facts = []
    for ranks in sides:
        group = next(group for group in views[ranks[0]].groups if group.name == name and not group.destroyed)
        fact = f"{ranks_words(ranks)}: {group.enqueued} operations of {name}, hash {group.prefix_hash:016x}"
        facts.append(Evidence(source="ring", rank=ranks[0], fact=fact))
    return tuple(facts)
