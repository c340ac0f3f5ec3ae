"""Finds what a device will be held up in by members that are gone, behind what it counts as unfinished now.

When a peer's process ends, NCCL's watchdog takes the broken connection for an error and counts no more: what it says
is unfinished may long be complete. What the rank has issued since and the gone member has not holds the rank up
in any case.
"""

import dataclasses
from collections.abc import Mapping

from ncclwatch.contract.model.rank import OpView, WaitKind
from ncclwatch_server.judge.theory.waits.rank_standing import (
    Block,
    RankStanding,
    Standing,
    device_block,
    group_of,
    has_entered,
)


def past_the_gone(found: Mapping[int, RankStanding]) -> dict[int, RankStanding]:
    """Return the standings with each rank's device where a gone member holds it up."""
    gone = {rank: each for rank, each in found.items() if each.standing is Standing.GONE}
    if not gone:
        return dict(found)
    return {
        rank: dataclasses.replace(each, blocks=tuple(_moved(each, block, found, gone) for block in each.blocks))
        if each.standing is Standing.BLOCKED and any(block.on_device for block in each.blocks)
        else each
        for rank, each in found.items()
    }


def _moved(
    standing: RankStanding, block: Block, found: Mapping[int, RankStanding], gone: Mapping[int, RankStanding]
) -> Block:
    if not block.on_device or block.operation.kind is not WaitKind.COLLECTIVE:
        return block
    members = block.operation.members
    if not all(member in found and has_entered(found[member], block.operation) for member in members):
        return block  # who is missing there is what it waits for
    left = [gone[member] for member in members if member in gone]
    ends = [group.enqueued for each in left if (group := group_of(each.view, block.operation.group)) is not None]
    later = _first_after(standing, block, min(ends)) if ends else None
    return block if later is None else device_block(standing.view, block.thread, later)


def _first_after(standing: RankStanding, block: Block, seq: int) -> OpView | None:
    """Return the first operation of the block's group behind a number, as the rank has issued it."""
    name = block.operation.group
    return next((op for op in standing.view.history if op.group == name and op.seq > seq and not op.op.is_p2p), None)
