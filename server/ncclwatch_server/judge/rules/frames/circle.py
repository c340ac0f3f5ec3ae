"""Tells of a circle of waits: who waits for whom in it. Why it closed is said by the rule of the cause."""

from collections.abc import Sequence

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit, source_evidence
from ncclwatch_server.judge.telling.words import at, group_words, wait_words, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Circle
from ncclwatch_server.judge.theory.roots import CircleRoot
from ncclwatch_server.judge.theory.waits.rank_standing import Block
from ncclwatch_server.judge.theory.waits.wait_graph import waited_for


def tell(case: Case, root: CircleRoot, cause: Cause, *, reason: str, advice: str) -> Explanation:
    """Return what is told of a circle for a cause."""
    blocks, guilty = root.blocks, frozenset(root.ranks)
    return Explanation(
        cause=cause,
        summary=f"{ranks_words(root.circle.ranks)} wait for each other: {waiting_words(case.views, blocks)}.",
        explanation=f"{_circle_words(case, blocks)} No rank of the circle can go on before another does. {reason}",
        advice=advice,
        culprits=tuple(
            culprit(case.views[block.rank], block.wait.site, f"in {wait_words(block.wait)}")
            for block in blocks
            if block.rank in guilty
        ),
        victims=root.victims,
        one_of=not root.decided,
        evidence=tuple(
            [*(block_evidence(block) for block in blocks[:16])]
            + [fact for block in blocks[:4] for fact in source_evidence(case.views[block.rank], block.wait.site)]
        ),
    )


def _circle_words(case: Case, blocks: Sequence[Block]) -> str:
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


def departed_words(circle: Circle) -> str:
    """Return who of a circle came to another call than in its earlier iterations."""
    if circle.departure is None:
        return ""
    did, usual = circle.departure.op, circle.departure.usual
    return (
        f"{ranks_words(circle.guilty).capitalize()} came to {did.op.value}{at(did.site)} where it made "
        f"{usual.op.value}{at(usual.site)} in its earlier iterations; the others of the circle kept to theirs."
    )
