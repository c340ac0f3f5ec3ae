"""Joins verdicts on roots that one mistake of the program has made in several places: the same lines, other ranks.

A pair of calls that cannot meet hangs in each of a thousand small groups, and that is one thing to mend.
"""

from collections.abc import Sequence, Set
from dataclasses import replace

from ncclwatch.contract.model.verdict import Verdict
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.theory.case import Case, explained

EVIDENCE_MAX = 40


def joined(case: Case, verdicts: Sequence[Verdict], more: Sequence[int]) -> Verdict:
    """Return the first verdict with all others at its lines, which name the same cause. `more`: ranks of others yet.

    Where nothing decides between the ranks of one place, nothing does in the others: all of these are suspects.
    """
    first, *same = verdicts
    if not same and not more:
        return first
    culprits = {culprit.rank: culprit for each in verdicts for culprit in each.culprits}
    beside = {rank for each in same for rank in ranks_of(each)}.union(more) - set(ranks_of(first))
    beside |= culprits.keys() - {culprit.rank for culprit in first.culprits}
    if not beside:
        return first
    victims = tuple(sorted({*first.victims, *beside} - culprits.keys()))
    summary = first.summary.removesuffix(".")
    return replace(
        first,
        summary=f"{summary}. {_others_words(beside, same if not more else (), culprits.keys())}.",
        culprits=tuple(culprits.values()),
        victims=victims,
        explained=explained(case, {*culprits, *victims}),
        evidence=tuple(fact for each in verdicts for fact in each.evidence)[:EVIDENCE_MAX],
    )


def _others_words(beside: set[int], same: Sequence[Verdict], culprits: Set[int]) -> str:
    """Return to whom else it has happened, and who is the cause there if that is known.

    Whom these hold up may wait for the first as well, and is told of all the same: they are its cause, too.
    """
    causes = {culprit.rank for each in same for culprit in each.culprits}
    others = {rank for each in same for rank in each.victims} - culprits
    # Where it is one of some in each of several places, who stands in which takes more words than a headline has.
    if not causes or not others or (same[0].one_of and len(same) > 1):
        return f"The same has happened to {ranks_words(beside)}, at the same lines"
    if same[0].one_of:
        return f"At the same lines, one of {ranks_words(causes)} holds up {ranks_words(others)} too"
    return f"At the same lines, {ranks_words(causes)} hold{'s' * (len(causes) == 1)} up {ranks_words(others)} too"


def ranks_of(verdict: Verdict) -> tuple[int, ...]:
    """Return everyone that a verdict speaks of."""
    return (*(culprit.rank for culprit in verdict.culprits), *verdict.victims)
