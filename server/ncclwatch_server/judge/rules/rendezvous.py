"""Jobs that never come together, and collectives that all have entered and none can finish."""

from collections import Counter

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause, Certainty, Culprit, Evidence, Severity, Verdict
from ncclwatch.contract.words.text import ADVICE, WAIT_WORDS, ranks_words, seconds_words
from ncclwatch_server.judge.theory.case import (
    Case,
    at,
    block_evidence,
    culprit,
    explained,
    onset_s,
    source_evidence,
    waiting_words,
)
from ncclwatch_server.judge.theory.moments import has_lasted
from ncclwatch_server.judge.theory.waits.device_order import may_wait_in_p2p
from ncclwatch_server.judge.theory.waits.rank_standing import Block, find_issued, has_entered, timeout_of

MISSING_S = 7.0  # for a rank of this very node that nobody has seen
MISSING_ELSEWHERE_S = 60.0  # nodes of a large job come up minutes apart
TOGETHER_S = 5.0  # all in init_process_group, and not together
INSIDE_S = 30.0  # all inside one collective: a big transfer looks the same for a while
INSIDE_FIRST_S = 90.0  # the same in the first collective of a group, which makes its connections
INSIDE_ON_DEVICE_S = 300.0  # a device that computes before it communicates looks the same, for a whole step
SIGNS_MIN = 2  # of stillness
INSIDE_OF_TIMEOUT = 0.5  # share of the group's timeout, where that is known


def missing(case: Case) -> tuple[Verdict, ...]:
    """Judge ranks that wait for ranks nobody has ever seen."""
    blocks = _blocks(case)
    wanted = sorted({rank for block in blocks for rank in case.graph.unseen[block.operation]})
    lost = [rank for rank in wanted if rank not in case.views and rank not in case.told]
    if not lost or not blocks:
        return ()
    view = case.views[blocks[0].rank]
    one_node = view.local_world_size == view.world_size
    # A server that has just come up again has had no time to hear of the others.
    waited_s = min(onset_s(blocks), case.snapshot.absent_s)
    if waited_s < (MISSING_S if one_node else MISSING_ELSEWHERE_S):
        return ()
    victims = tuple(sorted({block.rank for block in blocks}))
    return (
        Verdict(
            cause=Cause.INIT_INCOMPLETE,
            certainty=Certainty.STALLED,
            severity=Severity.CRITICAL if one_node else Severity.WARNING,
            summary=f"{ranks_words(lost)} never came; {waiting_words(case.views, blocks)}.",
            explanation=(
                f"No process of {ranks_words(lost)} has attached to ncclwatch in this job, and nothing can go on "
                "without it: it was not started, died before attach(), or hangs before it."
            ),
            advice=ADVICE[Cause.INIT_INCOMPLETE],
            culprits=tuple(Culprit(rank=rank, doing="never attached") for rank in lost),
            victims=victims,
            group=blocks[0].operation.group,
            seq=blocks[0].operation.seq,
            onset_s=waited_s,
            explained=explained(case, victims),
            evidence=tuple(block_evidence(block) for block in blocks[:16]),
        ),
    )


def scattered(case: Case) -> tuple[Verdict, ...]:
    """Judge ranks that are all in init_process_group and do not find each other: their addresses differ."""
    blocks = [block for block in _blocks(case) if block.operation.kind is WaitKind.INIT]
    if not blocks or onset_s(blocks) < TOGETHER_S:
        return ()
    endpoints = Counter(view.endpoint for view in case.views.values() if view.endpoint)
    if len(endpoints) < 2:
        return ()
    usual, votes = endpoints.most_common(1)[0]
    decided = votes * 2 > sum(endpoints.values())
    odd = tuple(rank for rank, view in case.views.items() if view.endpoint and view.endpoint != usual)
    guilty = odd if decided else tuple(rank for rank, view in case.views.items() if view.endpoint)
    victims = tuple(rank for rank in case.blocked if rank not in guilty)
    first = case.views[guilty[0]]
    site = next((b.wait.site for b in blocks if b.rank == guilty[0]), None)
    addresses = ", ".join(f"{ranks_words(_at(case, end))}: {end}" for end in endpoints)
    return (
        Verdict(
            cause=Cause.INIT_INCOMPLETE,
            certainty=Certainty.STALLED,
            severity=Severity.CRITICAL,
            summary=(
                f"{ranks_words(guilty)} looks for the others at {first.endpoint}{at(site)}, while they meet at {usual}."
                if decided
                else f"the ranks look for each other at different addresses ({addresses})."
            ),
            explanation=f"init_process_group needs all ranks at one MASTER_ADDR and MASTER_PORT. Here: {addresses}.",
            advice=ADVICE[Cause.INIT_INCOMPLETE],
            culprits=tuple(
                culprit(
                    case.views[rank],
                    next((b.wait.site for b in blocks if b.rank == rank), None),
                    f"in init_process_group at {case.views[rank].endpoint}",
                )
                for rank in guilty
            ),
            victims=victims,
            one_of=not decided,
            group=WaitKind.INIT.value,
            onset_s=onset_s(blocks),
            explained=explained(case, {*guilty, *victims}),
            evidence=tuple(block_evidence(block) for block in blocks[:16]),
        ),
    )


def _at(case: Case, endpoint: str) -> tuple[int, ...]:
    return tuple(rank for rank, view in case.views.items() if view.endpoint == endpoint)


def insiders(case: Case) -> tuple[Verdict, ...]:
    """Judge operations that every member has entered with one signature, and that do not end."""
    blocks = [
        block
        for block in _blocks(case)
        if not block.operation.unnamed
        and not case.graph.absent[block.operation]
        and not case.graph.unseen[block.operation]
        and all(
            rank in case.found and has_entered(case.found[rank], block.operation) for rank in block.operation.members
        )
        and _is_in_nothing_before(case, block)
    ]
    still = [block for block in blocks if _is_still(case, block)]
    if not blocks or len(still) < len(blocks):
        return ()
    if not has_lasted(case.views, blocks, max(_patience_s(case, block) for block in blocks)):
        return ()
    ranks = tuple(sorted({block.rank for block in blocks}))
    what = WAIT_WORDS.get(blocks[0].wait.kind) or blocks[0].wait.op.value
    return (
        Verdict(
            cause=Cause.TRANSPORT,
            certainty=Certainty.STALLED,
            severity=Severity.CRITICAL,
            summary=f"{ranks_words(ranks)} {_are_all(ranks)} inside {what}{at(blocks[0].wait.site)} and nothing moves.",
            explanation=_inside_words(case, blocks),
            advice=ADVICE[Cause.TRANSPORT],
            culprits=tuple(culprit(case.views[rank], blocks[0].wait.site, f"inside {what}") for rank in ranks),
            victims=(),
            one_of=True,
            group=blocks[0].operation.group,
            seq=blocks[0].operation.seq,
            op=blocks[0].wait.op.value,
            onset_s=onset_s(blocks),
            explained=explained(case, ranks),
            evidence=_inside_evidence(case, blocks),
        ),
    )


def _inside_words(case: Case, blocks: list[Block]) -> str:
    if all(_is_by_file(case, block) for block in blocks):
        return (
            "Every member has entered it and stands in nothing before, as far as recorded with the same arguments: the "
            "code agrees (reduce ops and roots may not be recorded), the transfer does not end. A kernel before it may "
            "be what hangs, where start times are not recorded."
        )
    return (
        f"Every member has entered with the same arguments and none has used CPU for "
        f"{seconds_words(onset_s(blocks))}: the code agrees, the transfer does not end."
    )


def _is_by_file(case: Case, block: Block) -> bool:
    file = case.views[block.rank].file
    return file is not None and not file.saw_host


def _is_in_nothing_before(case: Case, block: Block) -> bool:
    """Say whether no member is held up before it comes to an operation: hosts of devices issue far ahead."""
    if not _is_by_file(case, block):
        return not any(_comes_later(case, rank, block) for rank in block.operation.members)
    ranks = [rank for rank in block.operation.members if rank in case.graph.blocks]
    return all(any(own.operation == block.operation for own in case.graph.blocks[rank]) for rank in ranks)


def _comes_later(case: Case, rank: int, block: Block) -> bool:
    """Say whether the device of a member may stand in something that it was given before an operation."""
    operation, view = block.operation, case.views[rank]
    if not block.on_device or operation.kind is not WaitKind.COLLECTIVE:
        return False
    issued = find_issued(view, operation.group, operation.seq)
    return rank in case.graph.behind[operation] or (issued is not None and may_wait_in_p2p(view, issued))


def _inside_evidence(case: Case, blocks: list[Block]) -> tuple[Evidence, ...]:
    first = blocks[0]
    return tuple([block_evidence(b) for b in blocks[:16]] + source_evidence(case.views[first.rank], first.wait.site))


def _patience_s(case: Case, block: Block) -> float:
    if _is_by_file(case, block):
        return INSIDE_S
    if not block.on_device:
        first = block.operation.kind is WaitKind.COLLECTIVE and block.operation.seq <= 1
        return INSIDE_FIRST_S if first else INSIDE_S
    timeout_s = timeout_of(case.views[block.rank], block.operation.group)
    longest_s = max((habit.longest_s for habit in case.snapshot.habits.values()), default=0.0)
    return max(timeout_s * INSIDE_OF_TIMEOUT or INSIDE_ON_DEVICE_S, 3 * longest_s)


def _are_all(ranks: tuple[int, ...]) -> str:
    return "are all" if len(ranks) > 1 else "is"


def _is_still(case: Case, block: Block) -> bool:
    """Say whether a rank inside shows no work in two ways at least. The age of the wait is none of them."""
    if _is_by_file(case, block):  # nobody saw its host, and a job whose files were kept did not go on
        return True
    stack_s = block.thread.same_s if block.thread.leaf else None
    if block.on_device:  # a host that waits for CUDA spins: its stack, and that its device finishes nothing
        return stack_s is not None and stack_s >= INSIDE_S / 2
    process = case.views[block.rank].process
    signs = [process.cpu_still_s]
    signs += [] if process.io_unknown else [process.io_still_s]
    signs += [] if stack_s is None else [stack_s]
    return len(signs) >= SIGNS_MIN and min(signs) >= INSIDE_S / 2


def _blocks(case: Case) -> list[Block]:
    return [block for rank in case.unexplained for block in case.graph.blocks[rank]]
