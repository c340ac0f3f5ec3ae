"""Which ranks wait in init_process_group for a second group that the others have gone on without?

With TORCH_DISTRIBUTED_DEBUG=DETAIL torch makes a group of gloo beside each process group, which ends when all ranks of
that group have come to it (`_create_process_group_wrapper` in torch's distributed_c10d). A rank that has not set it
makes none. Once such a rank has left init_process_group, those that did set it wait there for as long as gloo lets
them: no later call of it belongs to that group. Two things have to agree: what the ranks said of themselves, and the
frame in which the waiting ones stand still. Ranks that have yet to come to init_process_group may be slow, and prove
nothing here.
"""

from ncclwatch.contract.model import preflight
from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause, Certainty, Severity, Verdict
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.rules.drift.findings import Finding, findings
from ncclwatch_server.judge.theory.case import Case, at, block_evidence, culprit, explained, onset_s, waiting_words
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation, generation
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

STILL_S = 3.0  # in that frame: connecting to ranks that do come takes less, once others are through
DEBUG_SETTING = "TORCH_DISTRIBUTED_DEBUG"
_MAKES_SECOND_GROUP = "_create_process_group_wrapper "


def checked_alone(case: Case) -> tuple[Verdict, ...]:
    """Judge ranks whose collectives are to be checked against ranks that check nothing."""
    checking = {rank for ranks in case.snapshot.setup.alike if _checks(ranks.facts) for rank in ranks.ranks}
    told = {rank for ranks in case.snapshot.setup.alike for rank in ranks.ranks}
    blocks = [
        block for rank in case.unexplained if rank in checking for block in case.graph.blocks[rank] if _makes(block)
    ]
    if not blocks:
        return ()
    gone_on = [rank for rank in sorted(told - checking) if _has_left(case, rank, blocks[0].operation)]
    found = next((each for each in findings(case.snapshot.setup, {}) if DEBUG_SETTING in each.settings), None)
    if not gone_on or found is None:
        return ()
    return (_verdict(case, blocks, gone_on, found),)


def _checks(facts: preflight.RankFacts) -> bool:
    return facts.get(preflight.DEBUG) == "DETAIL"


def _makes(block: Block) -> bool:
    """Say whether a rank stands still where the second group is made."""
    thread = block.thread
    inside = block.operation.kind is WaitKind.INIT and thread.leaf.startswith(_MAKES_SECOND_GROUP)
    return inside and min(thread.same_s, block.wait.age_s) >= STILL_S


def _has_left(case: Case, rank: int, operation: Operation) -> bool:
    """Say whether a rank has been through the very init_process_group that others are in."""
    view = case.views.get(rank)
    if view is None or not view.initialised or generation(view) != operation.seq:
        return False
    return not any(thread.wait is not None and thread.wait.kind is WaitKind.INIT for thread in view.threads)


def _verdict(case: Case, blocks: list[Block], gone_on: list[int], found: Finding) -> Verdict:
    inside = tuple(sorted({block.rank for block in blocks}))
    guilty = tuple(rank for rank in found.odd if rank in case.views)
    victims = tuple(sorted({*inside, *victims_of(case.graph, inside)} - set(guilty)))
    sites = {block.rank: block.wait.site for rank in case.blocked for block in case.graph.blocks[rank]}
    verb, has = ("waits", "has") if len(inside) == 1 else ("wait", "have")
    return Verdict(
        cause=Cause.CONFIGURATION_DRIFT,
        certainty=Certainty.PROVEN,
        severity=Severity.CRITICAL,
        summary=(
            f"{ranks_words(inside)} {verb} in init_process_group{at(blocks[0].wait.site)} for a group that "
            f"{ranks_words(gone_on)} {'has' if len(gone_on) == 1 else 'have'} gone on without: {found.summary}"
        ),
        explanation=(
            f"{found.explanation} {ranks_words(inside).capitalize()} {has} come to it and cannot leave it. Now "
            f"{waiting_words(case.views, [b for rank in case.blocked for b in case.graph.blocks[rank]])}."
        ),
        advice=found.advice,
        culprits=tuple(culprit(case.views[rank], sites.get(rank), found.doing) for rank in guilty),
        victims=victims,
        one_of=found.one_of,
        group=WaitKind.INIT.value,
        onset_s=onset_s(blocks),
        explained=explained(case, {*guilty, *victims, *inside}),
        evidence=(*found.evidence[:4], *(block_evidence(block) for block in blocks[:16])),
    )
