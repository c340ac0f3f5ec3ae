"""Tells of a circle of waits: who waits for whom in it. Why it closed is said by the rule of the cause."""

from collections.abc import Sequence

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause, Severity
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit, source_evidence
from ncclwatch_server.judge.telling.words import at, at_line, group_words, wait_words, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.circles import Circle
from ncclwatch_server.judge.theory.roots import CircleRoot
from ncclwatch_server.judge.theory.waits.rank_standing import Block
from ncclwatch_server.judge.theory.waits.wait_graph import waited_for

PHRASES_MAX = 6  # places that a circle is told by


def tell(case: Case, root: CircleRoot, cause: Cause, *, reason: str, advice: str, deed: str = "") -> Explanation:
    """Return what is told of a circle for a cause; `deed` says what the culprits did otherwise, where it is known."""
    blocks, guilty = root.blocks, frozenset(root.ranks)
    known = "as far as is recorded, " if root.circle.likely else ""
    law = f"Each of them waits for another one, so {known}none can continue."
    return Explanation(
        cause=cause,
        severity=Severity.WARNING if root.circle.early else Severity.CRITICAL,
        summary=_summary(case, root, deed),
        explanation=f"{_circle_words(case, blocks)} {law} {reason}",
        advice=advice,
        culprits=tuple(
            culprit(case.views[block.rank], block.wait.site, f"in {wait_words(block.wait)}")
            for block in (*blocks, *_outside(case, root))
            if block.rank in guilty
        ),
        victims=root.victims,
        one_of=not root.decided,
        evidence=tuple(
            [*(block_evidence(block) for block in blocks[:16])]
            + [fact for block in blocks[:4] for fact in source_evidence(case.views[block.rank], block.wait.site)]
        ),
    )


def _outside(case: Case, root: CircleRoot) -> list[Block]:
    """Return the waits of those who made the same mistake as a rank of the circle, and wait for it, not in it."""
    inside = {block.rank for block in root.blocks}
    return [block for rank in root.ranks if rank not in inside for block in case.graph.blocks.get(rank, ())]


def _summary(case: Case, root: CircleRoot, deed: str) -> str:
    others = [block for block in root.blocks if block.rank not in root.ranks]
    if deed and others:
        return f"{ranks_words(root.ranks)} {deed}; {waiting_words(case, others, root.ranks)}."
    waiting = waiting_words(case, root.blocks, first=root.ranks)
    deadlock = "possible deadlock" if root.circle.early else "deadlock"
    if root.decided and len(root.ranks) < len(root.circle.ranks):
        return f"{deadlock}, caused by {ranks_words(root.ranks)}: {waiting}."
    return f"{deadlock} of {ranks_words(root.circle.ranks)}: {waiting}."


def own_call(root: CircleRoot) -> str:
    """Return "barrier at train.py:80" of the culprits, where all of them wait in one call; else nothing."""
    own = [block for block in root.blocks if block.rank in root.ranks]
    calls = {f"{wait_words(block.wait)}{at_line(block.wait.site)}" for block in own}
    return calls.pop() if root.decided and len(calls) == 1 else ""


def _circle_words(case: Case, blocks: Sequence[Block]) -> str:
    """Return who waits in what for whom, one phrase for all ranks that wait in one place for the same ranks."""
    together: dict[tuple[str, str, tuple[int, ...]], list[Block]] = {}
    for block in blocks:
        absent = tuple(sorted(rank for rank in waited_for(case.graph, block) if rank != block.rank))
        place = (wait_words(block.wait), block.operation.group, absent)
        together.setdefault(place, []).append(block)
    phrases = [_phrase(case, alike, absent) for (*_, absent), alike in list(together.items())[:PHRASES_MAX]]
    if len(together) > PHRASES_MAX:
        phrases.append("other ranks wait elsewhere")
    return f"{'; '.join(phrases).capitalize()}."


def _phrase(case: Case, alike: Sequence[Block], absent: tuple[int, ...]) -> str:
    wait, ranks = alike[0].wait, sorted({block.rank for block in alike})
    who, many = ranks_words(ranks), len(ranks) > 1
    if wait.kind is WaitKind.LOCK:
        held = f"which {ranks_words(absent)} hold{'s' if len(absent) == 1 else ''}"
        return f"{who} {'wait' if many else 'waits'} for the lock on {wait.label or 'a file'}, {held}"
    inside = f"{who} {'are' if many else 'is'} in {wait_words(wait)}"
    needs = "need" if many else "needs"
    if wait.kind is WaitKind.STORE:
        return f"{inside} and {needs} another rank to set its key"
    if wait.kind not in (WaitKind.NEW_GROUP, WaitKind.INIT):
        inside += f" of {group_words(case.views, alike[0].operation.group)}"
    senders = f"one of {ranks_words(absent)}" if alike[0].operation.from_anyone and len(absent) > 1 else ""
    return f"{inside} and {needs} {senders or ranks_words(absent)} there"


def departed_words(circle: Circle) -> str:
    """Return who of a circle came to another call than in its earlier iterations."""
    if circle.departure is None:
        return ""
    did, usual = circle.departure.op, circle.departure.usual
    return (
        f"{ranks_words(circle.guilty).capitalize()} called {did.op.value}{at(did.site)} where it called "
        f"{usual.op.value}{at(usual.site)} in its earlier iterations; the other ranks did as before."
    )
