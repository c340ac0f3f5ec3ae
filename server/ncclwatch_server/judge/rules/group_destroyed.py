"""Who waits in a group that another member has destroyed? Nobody will come there any more: that is proof."""

from ncclwatch.contract.model.rank import CallSite, RankView, WaitKind
from ncclwatch.contract.model.verdict import Cause, Certainty, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, ranks_words
from ncclwatch_server.judge.theory.case import (
    Case,
    at,
    block_evidence,
    counts_words,
    culprit,
    explained,
    group_words,
    main_thread,
    onset_s,
    source_evidence,
    wait_words,
    waiting_words,
)
from ncclwatch_server.judge.theory.histories.odd_side import uneven_counts
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Standing, group_of
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

ABANDONED_S = 2.5  # a rank that destroyed its groups at its end is gone by then, and judged as such


def abandoned(case: Case) -> tuple[Verdict, ...]:
    """Judge collectives in groups that a member has destroyed without coming to them."""
    blocks = [
        block
        for rank in case.unexplained
        for block in case.graph.blocks[rank]
        if block.operation.kind is WaitKind.COLLECTIVE and _leavers(case, block)
    ]
    if not blocks:
        return ()
    ranks = tuple(sorted({rank for block in blocks for rank in _leavers(case, block)}))
    victims = tuple(rank for rank in victims_of(case.graph, ranks) if rank not in ranks)
    counts = uneven_counts(case.views, ranks, tuple(rank for rank in victims if rank in case.views))
    cause = Cause.UNEVEN_BATCHES if counts is not None else Cause.GROUP_DESTROYED
    first, view = blocks[0], case.views[ranks[0]]
    doing = _doing(view)
    group = group_words(case.views, first.operation.group)
    drawn = f" Batches drawn in this epoch: {counts_words(counts)}." if counts is not None else ""
    return (
        Verdict(
            cause=cause,
            certainty=Certainty.PROVEN,
            severity=Severity.CRITICAL,
            summary=(
                f"{ranks_words(ranks)} destroyed {group}, and {'is' if len(ranks) == 1 else 'are'} now {doing}; "
                f"{waiting_words(case.views, blocks)}."
            ),
            explanation=(
                f"Operation #{first.operation.seq} of {group} needs all its members, and {ranks_words(ranks)} took the "
                f"group down before coming to it.{drawn}"
            ),
            advice=ADVICE[cause],
            culprits=tuple(
                culprit(case.views[rank], _site(case.views[rank]), _doing(case.views[rank])) for rank in ranks
            ),
            victims=victims,
            group=first.operation.group,
            seq=first.operation.seq,
            op=first.wait.op.value,
            onset_s=onset_s(blocks),
            explained=explained(case, {*ranks, *victims}),
            evidence=_evidence(case, ranks, blocks),
        ),
    )


def _leavers(case: Case, block: Block) -> tuple[int, ...]:
    """Return the members that have destroyed the group without coming to this operation, and still live."""
    found = []
    for rank in case.graph.absent[block.operation]:
        group = group_of(case.views[rank], block.operation.group)
        stays = case.found[rank].standing is Standing.BLOCKED or block.wait.age_s >= ABANDONED_S
        if group is not None and group.destroyed and stays and case.found[rank].standing is not Standing.GONE:
            found.append(rank)
    return tuple(found)


def _doing(view: RankView) -> str:
    thread = main_thread(view)
    if thread is not None and thread.wait is not None:
        return f"in {wait_words(thread.wait)}{at(thread.wait.site)}"
    return f"elsewhere{at(_site(view))}"


def _site(view: RankView) -> CallSite | None:
    thread = main_thread(view)
    if thread is not None and thread.wait is not None and thread.wait.site is not None:
        return thread.wait.site
    return thread.doing if thread is not None else None


def _evidence(case: Case, ranks: tuple[int, ...], blocks: list[Block]) -> tuple[Evidence, ...]:
    facts = [
        Evidence(source="ring", rank=rank, fact=f"destroyed the group; {_doing(case.views[rank])}") for rank in ranks
    ]
    for rank in ranks:
        facts += source_evidence(case.views[rank], _site(case.views[rank]))
    return tuple(facts + [block_evidence(block) for block in blocks[:16]])
