"""Finds operations that all members have entered alike and that do not end, or all members that anybody knows."""

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, onset_s
from ncclwatch_server.judge.theory.finders.meetings import unexplained_blocks
from ncclwatch_server.judge.theory.moments import has_lasted
from ncclwatch_server.judge.theory.roots import InsideRoot, UntoldRoot, place_of
from ncclwatch_server.judge.theory.stillness import SIGNS_MIN
from ncclwatch_server.judge.theory.waits.device_order import may_wait_in_p2p
from ncclwatch_server.judge.theory.waits.rank_standing import Block, find_issued, has_entered, timeout_of
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

INSIDE_S = 30.0  # all inside one collective: a big transfer looks the same for a while
INSIDE_FIRST_S = 90.0  # the same in the first collective of a group, which makes its connections
INSIDE_ON_DEVICE_S = 300.0  # a device that computes before it communicates looks the same, for a whole step
INSIDE_OF_TIMEOUT = 0.5  # share of the group's timeout, where that is known
UNTOLD_S = 30.0  # of an unknown rank nobody can say whether it works
UNTOLD_LONG_S = 300.0  # of such a wait, or
UNTOLD_OF_TIMEOUT = 0.5  # this share of the group's timeout


def find_inside(case: Case) -> InsideRoot | None:
    """Return operations that every member has entered with one signature, and that do not end."""
    blocks = tuple(
        block
        for block in unexplained_blocks(case)
        if not block.operation.unnamed
        and not case.graph.absent[block.operation]
        and not case.graph.unseen[block.operation]
        and all(
            rank in case.found and has_entered(case.found[rank], block.operation) for rank in block.operation.members
        )
        and _is_in_nothing_before(case, block)
    )
    still = [block for block in blocks if _is_still(case, block)]
    if not blocks or len(still) < len(blocks):
        return None
    if not has_lasted(case.views, blocks, max(_patience_s(case, block) for block in blocks)):
        return None
    return InsideRoot(
        hangs=Certainty.STALLED,
        ranks=tuple(sorted({block.rank for block in blocks})),
        decided=False,
        blocks=blocks,
        place=place_of(blocks),
        onset_s=onset_s(blocks),
        by_files=all(_is_by_file(case, block) for block in blocks),
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


def _patience_s(case: Case, block: Block) -> float:
    if _is_by_file(case, block):
        return INSIDE_S
    if not block.on_device:
        first = block.operation.kind is WaitKind.COLLECTIVE and block.operation.seq <= 1
        return INSIDE_FIRST_S if first else INSIDE_S
    timeout_s = timeout_of(case.views[block.rank], block.operation.group)
    longest_s = max((habit.longest_s for habit in case.snapshot.habits.values()), default=0.0)
    return max(timeout_s * INSIDE_OF_TIMEOUT or INSIDE_ON_DEVICE_S, 3 * longest_s)


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


def find_untold(case: Case) -> UntoldRoot | None:
    """Return operations that all known members have entered, where others belong to the group."""
    blocks = tuple(block for block in unexplained_blocks(case) if _waits_for_unnamed(case, block))
    if not blocks or not has_lasted(case.views, blocks, UNTOLD_S):
        return None
    operation = blocks[0].operation
    ranks = tuple(sorted({block.rank for block in blocks}))
    over = all(case.views[rank].file is not None for rank in ranks)  # nothing more will come of it
    return UntoldRoot(
        hangs=Certainty.STALLED if over else Certainty.LATE,
        ranks=(),
        decided=False,
        victims=tuple(sorted({*ranks, *victims_of(case.graph, ranks)})),
        blocks=blocks,
        place=place_of(blocks),
        onset_s=onset_s(blocks),
        operation=operation,
        untold=case.graph.untold[operation],
        long=any(_is_long(case, block) for block in blocks),
        over=over,
    )


def _waits_for_unnamed(case: Case, block: Block) -> bool:
    operation = block.operation
    not_known = operation.unnamed or case.graph.untold[operation]
    return bool(not_known) and not case.graph.absent[operation] and not case.graph.unseen[operation]


def _is_long(case: Case, block: Block) -> bool:
    timeout_s = timeout_of(case.views[block.rank], block.operation.group)
    return block.wait.age_s >= min(UNTOLD_LONG_S, timeout_s * UNTOLD_OF_TIMEOUT or UNTOLD_LONG_S)
