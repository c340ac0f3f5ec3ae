"""Tells who waits for whom, of the ranks that a verdict speaks of. As data, so that nobody reads it out of sentences.

A picture of it needs no more than what the wait-for graph holds: ranks that are blocked in one operation at one line
for the same others are one row.
"""

from ncclwatch.contract.model.rank import CallSite
from ncclwatch.contract.model.verdict import Verdict, Waiters
from ncclwatch_server.judge.telling.words import wait_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.waits.group_identity import name_of
from ncclwatch_server.judge.theory.waits.rank_standing import Block
from ncclwatch_server.judge.theory.waits.wait_graph import WaitGraph, waited_for

ROWS_MAX = 64
AWAITED_MAX = 256  # ranks in one row; a group may have 100,000

_Key = tuple[str, str, int, CallSite | None, tuple[int, ...]]


def waiters_of(case: Case, verdict: Verdict) -> tuple[Waiters, ...]:
    """Return who waits for whom, the rows with culprits first, then those of the most ranks."""
    culprits = frozenset(culprit.rank for culprit in verdict.culprits)
    awaited = _Awaited(case.graph, culprits)
    together: dict[_Key, list[int]] = {}
    for rank in sorted(culprits.union(verdict.victims)):
        for block in case.graph.blocks.get(rank, ()):
            wait = block.wait
            key = (wait_words(wait), wait.group, wait.seq, wait.site, awaited.by(block))
            together.setdefault(key, []).append(rank)
    rows = [
        Waiters(ranks=tuple(dict.fromkeys(ranks)), doing=doing, group=name_of(group), seq=seq, site=site, awaits=awaits)
        for (doing, group, seq, site, awaits), ranks in together.items()
    ]
    rows.sort(key=lambda row: (culprits.isdisjoint(row.ranks), -len(row.ranks), row.ranks))
    return tuple(rows[:ROWS_MAX])


class _Awaited:
    """Whom blocked ranks wait for, found out once for each operation, or for each side of one that parts them.

    Half of 16,384 ranks may wait for the other half: asked rank by rank that is a hundred million answers.
    """

    def __init__(self, graph: WaitGraph, culprits: frozenset[int]) -> None:
        self._graph = graph
        self._culprits = culprits
        self._sides = {m.operation: tuple(map(frozenset, m.sides)) for m in reversed(graph.mismatches)}
        self._known: dict[object, tuple[int, ...]] = {}

    def by(self, block: Block) -> tuple[int, ...]:
        """Return whom a blocked rank waits for, itself left out."""
        operation = block.operation
        sides = self._sides.get(operation)
        mine = next((side for side in sides if block.rank in side), frozenset[int]()) if sides is not None else None
        found = self._known.get((operation, mine))
        if found is None:
            ranks = self._missing(block) if sides is None else {rank for side in sides if side != mine for rank in side}
            found = self._known[operation, mine] = tuple(sorted(ranks)[: AWAITED_MAX + 1])
        if block.rank in found:
            return tuple(rank for rank in found if rank != block.rank)
        return found[:AWAITED_MAX]

    def _missing(self, block: Block) -> set[int]:
        """Return who has not come, or who is gone inside."""
        missing = {*waited_for(self._graph, block), *self._graph.unseen[block.operation]}
        # All have entered, and one holds it up from inside: it is frozen, or gone.
        return missing or {r for r in block.operation.members if r in self._culprits and r not in self._graph.blocks}
