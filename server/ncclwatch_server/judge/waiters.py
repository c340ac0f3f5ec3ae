"""Who waits for whom, of the ranks that a verdict speaks of? Told as data, so that nobody reads it out of sentences.

A picture of it needs no more than what the wait-for graph holds: ranks that are blocked in one operation at one line
for the same others are one row.
"""

from ncclwatch.contract.model import CallSite, Verdict, Waiters
from ncclwatch_server.judge.case import Case, wait_words
from ncclwatch_server.judge.graph import WaitGraph, waited_for
from ncclwatch_server.judge.standing import Block

ROWS_MAX = 64
AWAITED_MAX = 256  # ranks in one row; a group may have 100,000

_Key = tuple[str, str, int, CallSite | None, tuple[int, ...]]


def waiters_of(case: Case, verdict: Verdict) -> tuple[Waiters, ...]:
    """Return who waits for whom, the rows with culprits first, then those of the most ranks."""
    culprits = {culprit.rank for culprit in verdict.culprits}
    together: dict[_Key, list[int]] = {}
    for rank in sorted(culprits | set(verdict.victims)):
        for block in case.graph.blocks.get(rank, ()):
            together.setdefault(_key(case.graph, block, culprits), []).append(rank)
    rows = [
        Waiters(ranks=tuple(dict.fromkeys(ranks)), doing=doing, group=group, seq=seq, site=site, awaits=awaits)
        for (doing, group, seq, site, awaits), ranks in together.items()
    ]
    rows.sort(key=lambda row: (culprits.isdisjoint(row.ranks), -len(row.ranks), row.ranks))
    return tuple(rows[:ROWS_MAX])


def _key(graph: WaitGraph, block: Block, culprits: set[int]) -> _Key:
    wait = block.wait
    awaits = tuple(sorted({*_awaited(graph, block, culprits)} - {block.rank})[:AWAITED_MAX])
    return (wait_words(wait), wait.group, wait.seq, wait.site, awaits)


def _awaited(graph: WaitGraph, block: Block, culprits: set[int]) -> tuple[int, ...]:
    """Return whom a blocked rank waits for: who has not come, the other sides of a mismatch, or who is gone inside."""
    operation = block.operation
    for mismatch in graph.mismatches:
        if mismatch.operation == operation:
            return tuple(rank for side in mismatch.sides if block.rank not in side for rank in side)
    missing = (*waited_for(graph, block), *graph.unseen[operation])
    # All have entered, and one holds it up from inside: it is frozen, or gone.
    return missing or tuple(rank for rank in operation.members if rank in culprits and rank not in graph.blocks)
