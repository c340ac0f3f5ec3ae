"""Finds what a device will be held up in by members that are gone, behind what it counts as unfinished now.

When a peer's process ends, NCCL's watchdog takes the broken connection for an error and counts no more: what it says
is unfinished may long be complete. What the rank has issued since and the gone member has not holds the rank up
in any case.
"""

import dataclasses
from collections.abc import Mapping

from ncclwatch.contract.model.rank import OpView, RankView, WaitKind
from ncclwatch_server.judge.theory.waits.rank_standing import (
    Block,
    Operation,
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
    # Many ranks are in one operation, and it may have all of them as members.
    operations = {block.operation for each in found.values() for block in each.blocks if block.on_device}
    ends = {operation: _end_of(operation, found, gone) for operation in operations}
    return {
        rank: dataclasses.replace(each, blocks=tuple(_moved(each.view, block, ends) for block in each.blocks))
        if each.standing is Standing.BLOCKED and any(block.on_device for block in each.blocks)
        else each
        for rank, each in found.items()
    }


def _end_of(operation: Operation, found: Mapping[int, RankStanding], gone: Mapping[int, RankStanding]) -> int | None:
    """Return how many collectives of the group the gone members have made, the fewest; None: that is not what it needs.

    Who has not entered the operation itself is what its members wait for.
    """
    if operation.kind is not WaitKind.COLLECTIVE:
        return None
    left = [gone[member] for member in operation.members if member in gone]
    if not left or not all(member in found and has_entered(found[member], operation) for member in operation.members):
        return None
    groups = (group_of(each.view, operation.group) for each in left)
    return min((group.enqueued for group in groups if group is not None), default=None)


def _moved(view: RankView, block: Block, ends: Mapping[Operation, int | None]) -> Block:
    end = ends[block.operation] if block.on_device else None
    later = _first_after(view, block.operation.group, end) if end is not None else None
    return block if later is None else device_block(view, block.thread, later)


def _first_after(view: RankView, name: str, seq: int) -> OpView | None:
    """Return the first collective of a group behind a number, as the rank has issued it; None if it is forgotten."""
    return next((op for op in view.history if op.group == name and op.seq == seq + 1 and not op.op.is_p2p), None)
