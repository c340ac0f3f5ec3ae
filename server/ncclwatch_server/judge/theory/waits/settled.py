"""Finds operations to which all members have come, as one of them tells, and devices that are in these still."""

from collections.abc import Mapping

from ncclwatch.contract.model.rank import RankView, WaitKind
from ncclwatch_server.judge.theory.histories.signatures import SYNCHRONISING
from ncclwatch_server.judge.theory.waits.device_order import may_wait_in_p2p
from ncclwatch_server.judge.theory.waits.rank_standing import (
    Block,
    Operation,
    RankStanding,
    Standing,
    agree,
    group_of,
)


def stopped_devices(
    found: Mapping[int, RankStanding], absent: Mapping[Operation, tuple[int, ...]], mismatched: set[Operation]
) -> Mapping[int, Block]:
    """Return the ranks that are still in an operation which another member has completed, and none is absent from.

    No member completes a synchronising collective before all are in it, and nothing is received before it was sent. So
    such a rank waits for nobody there: its device has stopped, or what tells of its end. So has that of a rank alone in
    the group of its oldest operation.
    """
    stopped: dict[int, Block] = {}
    for rank, each in found.items():
        blocks = (*each.blocks, *each.queued) if each.standing is Standing.BLOCKED else ()
        for block in blocks:
            if not block.on_device:
                continue
            held_up = absent[block.operation] or block.operation in mismatched
            alone = is_alone(block) and block in each.blocks and not _may_be_in_p2p(each.view, block)
            if rank not in stopped and not held_up and (alone or is_settled(found, block)):
                stopped[rank] = block
    return stopped


def is_alone(block: Block) -> bool:
    """Say whether a rank waits in an operation that has no other member, not even one that nobody knows."""
    return block.operation.size == 1


def _may_be_in_p2p(view: RankView, block: Block) -> bool:
    """Say whether a device may be held up in a send or a receive before it comes to an operation."""
    return block.issued is not None and may_wait_in_p2p(view, block.issued)


def is_settled(found: Mapping[int, RankStanding], block: Block) -> bool:
    """Say whether all members have come to an operation, because one is through with it.

    What was received had been sent; a send may end before its receive has begun.
    """
    operation = block.operation
    if operation.kind is WaitKind.SEND:
        return any(
            (peer.group, peer.peer) == (operation.group, block.rank) and peer.recvs_completed >= operation.seq
            for peer in (found[operation.target].view.peers if operation.target in found else ())
            if peer.told
        )
    if operation.kind is not WaitKind.COLLECTIVE or block.wait.op not in SYNCHRONISING or operation.unnamed:
        return False
    through = (
        group.completed >= operation.seq
        for member in operation.members
        if member in found
        and (group := group_of(found[member].view, operation.group)) is not None
        and not group.untold
        and not _have_parted(found[member].view, found[block.rank].view, operation)
    )
    own = group_of(found[block.rank].view, operation.group)
    if own is not None and own.untold:  # its file is older than those of the others: it may be through since
        return False
    return any(through)


def _have_parted(one: RankView, other: RankView, operation: Operation) -> bool:
    """Say whether two ranks made different calls as a later operation of a group.

    Then they may have parted before: what one of them has completed under a number need not be what the other is in.
    """
    theirs = {op.seq: op for op in other.history if op.group == operation.group and not op.op.is_p2p}
    return any(
        op.seq > operation.seq and op.seq in theirs and not agree(op, theirs[op.seq])
        for op in one.history
        if op.group == operation.group and not op.op.is_p2p
    )
