"""Finds operations that all members have entered alike and that do not end, or all members that anybody knows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ncclwatch.contract.model.rank import Op, WaitKind
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, device_patience_s, onset_s
from ncclwatch_server.judge.theory.finders.meetings import unexplained_blocks
from ncclwatch_server.judge.theory.finders.proven import mismatch_roots
from ncclwatch_server.judge.theory.moments import has_lasted, is_timed
from ncclwatch_server.judge.theory.roots import Found, InsideRoot, UntoldRoot, place_of
from ncclwatch_server.judge.theory.stillness import SIGNS_MIN
from ncclwatch_server.judge.theory.waits.device_order import may_wait_in_p2p
from ncclwatch_server.judge.theory.waits.mismatches import mismatch
from ncclwatch_server.judge.theory.waits.rank_standing import (
    Block,
    Operation,
    find_issued,
    has_entered,
    timeout_of,
)
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

INSIDE_S = 30.0  # all inside one collective: a big transfer looks the same for a while
INSIDE_FIRST_S = 90.0  # the same in the first collective of a group, which makes its connections
UNTOLD_S = 30.0  # of an unknown rank nobody can say whether it works
UNTOLD_LONG_S = 300.0  # of such a wait, or
UNTOLD_OF_TIMEOUT = 0.5  # this share of the group's timeout


def find_inside(case: Case) -> InsideRoot | None:
    """Return an operation that every member has entered with one signature and that does not end, with all at its line.

    Other operations do not end because of their own: these are found when this one was told.
    """
    inside = (each for operation, each in _waits(case).items() if _are_all_inside(case, operation, each))
    blocks = _at_lines_of_the_first([each for each in inside if _does_not_end(case, each)])
    if not blocks:
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


def find_inside_after_mismatch(case: Case) -> Found:
    """Return the mismatch right before an operation that every member has entered alike and that does not end.

    A rooted collective may end with different roots, and leave bytes for the next one: NCCL then hangs in that, or
    fails. No device computes for so long by chance right after such a mistake, so it is given a host's patience.
    """
    for operation, blocks in _waits(case).items():
        before = mismatch(replace(operation, seq=operation.seq - 1), case.found) if operation.seq > 1 else None
        if before is None or not _are_all_inside(case, operation, blocks) or not _does_not_end(case, blocks, INSIDE_S):
            continue
        roots = mismatch_roots(case, before)
        return tuple(
            (
                replace(
                    root,
                    hangs=Certainty.STALLED,
                    victims=tuple(rank for rank in operation.members if rank not in root.ranks),
                    blocks=tuple(blocks),
                    onset_s=onset_s(blocks),
                    then=operation,
                ),
            )
            for root in roots
        )
    return ()


def _waits(case: Case) -> Mapping[Operation, Sequence[Block]]:
    """Return the waits that no root explains yet, by what they are for."""
    found: dict[Operation, list[Block]] = {}
    for block in unexplained_blocks(case):
        found.setdefault(block.operation, []).append(block)
    return found


def _at_lines_of_the_first(waits: Sequence[Sequence[Block]]) -> tuple[Block, ...]:
    """Return the waits for the operation that has lasted for longest, and for all that are waited for at its lines."""
    if len(waits) < 2:
        return tuple(waits[0]) if waits else ()
    lines = [frozenset((block.wait.kind, block.wait.op, block.wait.site) for block in each) for each in waits]
    first = lines[max(range(len(waits)), key=lambda number: onset_s(waits[number]))]
    alike = [block for each, own in zip(waits, lines, strict=True) if own == first for block in each]
    return tuple(sorted(alike, key=lambda block: block.rank))


def _are_all_inside(case: Case, operation: Operation, blocks: Sequence[Block]) -> bool:
    """Say whether every member of an operation has entered it, and is held up by nothing before it."""
    if operation.unnamed or case.graph.absent[operation] or case.graph.unseen[operation]:
        return False
    if not all(rank in case.found and has_entered(case.found[rank], operation) for rank in operation.members):
        return False
    unknown = any(group.unnamed for rank in operation.members for group in case.views[rank].groups)
    if operation.kind is WaitKind.NEW_GROUP and unknown:  # whether it is one of these, which a member has made
        return False
    kinds = {(_is_by_file(case, block), block.on_device): block for block in blocks}
    return all(_is_in_nothing_before(case, block) for block in kinds.values())


def _does_not_end(case: Case, blocks: Sequence[Block], patience_s: float = 0.0) -> bool:
    """Say whether nothing moves in an operation, for longer than it may take."""
    patience_s = patience_s or max(_patience_s(case, block) for block in blocks)
    if any(_came_s(case, rank, blocks[0]) < patience_s for rank in blocks[0].operation.members):
        return False
    return all(_is_still(case, block) for block in blocks) and has_lasted(case.views, blocks, patience_s)


def _came_s(case: Case, rank: int, block: Block) -> float:
    """Return how long ago, at least, a member issued an operation; infinity where no moment is known.

    What its ring has forgotten was issued before all that it remembers.
    """
    operation, view = block.operation, case.views[rank]
    if operation.kind in (WaitKind.INIT, WaitKind.NEW_GROUP):
        waits = [thread.wait for thread in view.threads if thread.wait and thread.wait.kind is operation.kind]
        return min((wait.age_s + view.news_age_s for wait in waits), default=math.inf)
    message = None
    if operation.kind in (WaitKind.SEND, WaitKind.RECV):
        sent = operation.kind is WaitKind.SEND
        message = (Op.RECV, operation.source) if sent else (Op.SEND, operation.target)
    issued = find_issued(view, operation.group, operation.seq, message)
    remembered = (issued,) if issued is not None else view.history
    if not remembered or not is_timed(view):
        return math.inf
    return max(op.age_s for op in remembered) + view.news_age_s


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
    if not block.on_device:
        return False
    if rank in case.graph.behind[operation]:
        return True
    if operation.kind is not WaitKind.COLLECTIVE:
        return False
    issued = find_issued(view, operation.group, operation.seq)
    return issued is not None and may_wait_in_p2p(view, issued)


def _patience_s(case: Case, block: Block) -> float:
    if _is_by_file(case, block):
        return INSIDE_S
    if not block.on_device:
        first = block.operation.kind is WaitKind.COLLECTIVE and block.operation.seq <= 1
        return INSIDE_FIRST_S if first else INSIDE_S
    return device_patience_s(case, block)


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
    """Return an operation that all known members have entered, where others belong to the group, with all like it."""
    waits = [each for operation, each in _waits(case).items() if _waits_for_unnamed(case, operation)]
    blocks = _at_lines_of_the_first([each for each in waits if has_lasted(case.views, each, UNTOLD_S)])
    if not blocks:
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


def _waits_for_unnamed(case: Case, operation: Operation) -> bool:
    not_known = operation.unnamed or case.graph.untold[operation]
    return bool(not_known) and not case.graph.absent[operation] and not case.graph.unseen[operation]


def _is_long(case: Case, block: Block) -> bool:
    timeout_s = timeout_of(case.views[block.rank], block.operation.group)
    return block.wait.age_s >= min(UNTOLD_LONG_S, timeout_s * UNTOLD_OF_TIMEOUT or UNTOLD_LONG_S)
