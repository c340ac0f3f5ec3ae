"""Ranks make one call with different arguments, or have issued different operations though nothing hangs yet."""

from collections.abc import Iterator, Mapping

from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Cause, Divergence, Evidence, Severity
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Rule, Told, When
from ncclwatch_server.judge.rules.frames import mismatch
from ncclwatch_server.judge.telling.evidence import culprit
from ncclwatch_server.judge.telling.signs import sign_words
from ncclwatch_server.judge.telling.words import at, group_words, op_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.finders.out_of_step import OutOfStep, comparable, find_out_of_step
from ncclwatch_server.judge.theory.histories.parting import Parting, Way
from ncclwatch_server.judge.theory.roots import MismatchRoot, Place, Root

CAUSE = Cause.SIGNATURE_MISMATCH
ADVICE = (
    "Pass the same shape, dtype, root and reduce op to this call on all ranks. Pad or gather the sizes first where "
    "lengths differ by rank."
)


def recognise(root: Root, case: Case) -> Explanation | None:
    """Explain a mismatch of ranks that are at the same call."""
    if isinstance(root, MismatchRoot) and root.partings[0].way is Way.ARGUMENTS:
        return mismatch.tell(case, root, CAUSE, reason=_reason, advice=ADVICE)
    return None


def _reason(found: Parting) -> str:
    same = "All ranks make the same call with different arguments."
    if not found.decided:
        return same
    return f"{same} Why {ranks_words(found.culprit.ranks)}: {sign_words(found.sign, found.culprit.ranks)}."


def warn(case: Case) -> Iterator[Told]:
    """Warn of the first group whose members have issued different operations."""
    found = find_out_of_step(case.views)
    if found is not None:
        op = found.odd
        place = Place(found.group, op.seq, op.op.value) if op is not None else Place(found.group)
        yield Told(said=_out_of_step(case, found), place=place)


def _out_of_step(case: Case, found: OutOfStep) -> Explanation:
    usual, odd, mine, theirs = found.sides[0], found.others, found.odd, found.usual
    group = group_words(case.views, found.group)
    what = f"an operation of {group} was not the same for {ranks_words(odd)} and {ranks_words(usual)}"
    if mine is not None and theirs is not None:
        what = (
            f"operation #{mine.seq} of {group} was {op_words(mine)}{at(mine.site)} for {ranks_words(odd)} and "
            f"{op_words(theirs)}{at(theirs.site)} for {ranks_words(usual)}"
        )
    return Explanation(
        cause=CAUSE,
        severity=Severity.WARNING,
        summary=f"ranks have diverged, without a hang so far: {what}.",
        explanation=(
            "The results there are not what the code describes, and later calls may be paired with the wrong ones. The "
            "job may hang or fail at a later call."
        ),
        advice=ADVICE,
        culprits=tuple(
            culprit(case.views[rank], mine.site if mine and rank in odd else None, "issued something else")
            for rank in found.ranks
        ),
        victims=tuple(rank for rank in usual if rank not in found.ranks),
        one_of=not found.decided,
        divergence=_divergence(found),
        evidence=_evidence(case.views, found),
    )


def _divergence(found: OutOfStep) -> Divergence | None:
    mine, theirs = found.odd, found.usual
    if mine is None or theirs is None:
        return None
    return Divergence(
        group=found.group, seq=mine.seq, culprit_op=mine.op.value, culprit_site=mine.site, victim_op=theirs.op.value,
        victim_site=theirs.site, fact="they issued different operations",
    )  # fmt: skip


def _evidence(views: Mapping[int, RankView], found: OutOfStep) -> tuple[Evidence, ...]:
    facts = []
    for ranks in found.sides:
        group = next(each for each in comparable(views[ranks[0]]) if each.name == found.group)
        fact = f"{ranks_words(ranks)}: {group.enqueued} operations of {found.group}, hash {group.prefix_hash:016x}"
        facts.append(Evidence(source="ring", rank=ranks[0], fact=fact))
    return tuple(facts)


RULE = Rule(cause=CAUSE, advice=ADVICE, recognise=recognise, warn=warn, when=When.AT_REST)
