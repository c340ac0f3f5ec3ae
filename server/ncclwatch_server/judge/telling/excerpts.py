"""Chooses the source lines that a reader needs beside a verdict: the culprit's, and those of the ranks that wait."""

from collections.abc import Iterator

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Excerpt, Verdict, Waiters
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.histories.lines.call_sites import excerpt_at

EXCERPTS_MAX = 4
ROWS_MAX, RANKS_MAX = 16, 4  # whose notes are looked through: one node that has read the file is enough


def excerpts_of(case: Case, verdict: Verdict, waiters: tuple[Waiters, ...]) -> tuple[Excerpt, ...]:
    """Return the source around the lines that a verdict names, the culprits' first, as far as nodes have read it."""
    ranks = [culprit.rank for culprit in verdict.culprits[:EXCERPTS_MAX]]
    ranks += [rank for row in waiters[:ROWS_MAX] for rank in row.ranks[:RANKS_MAX]]
    views = tuple(case.views[rank] for rank in dict.fromkeys(ranks) if rank in case.views)
    found = (excerpt_at(views, site) for site in dict.fromkeys(_sites(verdict, waiters)))
    return tuple(excerpt for excerpt in found if excerpt is not None)[:EXCERPTS_MAX]


def _sites(verdict: Verdict, waiters: tuple[Waiters, ...]) -> Iterator[CallSite]:
    parted = verdict.first_divergence
    culprits = {culprit.rank for culprit in verdict.culprits}
    places = [parted.culprit_site] if parted is not None else []
    places += [culprit.call_site for culprit in verdict.culprits[:EXCERPTS_MAX]]
    places += [parted.victim_site] if parted is not None else []
    places += [row.site for row in waiters if culprits.isdisjoint(row.ranks)][:1]
    yield from (site for site in places if site is not None)
