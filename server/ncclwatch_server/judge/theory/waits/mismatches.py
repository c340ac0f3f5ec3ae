"""Finds collectives that members entered with different signatures, and whom that holds up.

A mismatch holds up each member that needs one of another side. In a synchronising collective that is everybody. In a
rooted one it depends on the root: it only sends in a broadcast or a scatter, others only send to it in a gather or a
reduce, and a tree may reach a member through its own side alone. So a member of the root's side may go on until it has
stayed where it is for longer than a transfer takes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from ncclwatch.contract.model.rank import GroupView, Op, OpView, WaitKind
from ncclwatch_server.judge.theory.waits.rank_standing import (
    Block,
    Operation,
    RankStanding,
    Standing,
    find_issued,
    group_of,
    held_back,
    sides_of,
)

FROM_ROOT = frozenset((Op.BROADCAST, Op.SCATTER))
TO_ROOT = frozenset((Op.REDUCE, Op.GATHER))
# A member of these may need the root alone, or nobody.
ROOTED = FROM_ROOT | TO_ROOT
AT_A_TIME = 2  # operations of a group that gloo runs, with one network device; the others queue
QUEUED_MAX = 64  # operations before the one that is waited for that are looked at
SETTLED_S = 3.0  # since the last member came: what could be transferred has been


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A collective that members entered with different signatures: it can never complete for all."""

    operation: Operation
    sides: tuple[tuple[int, ...], ...]  # ranks by signature


def mismatch(operation: Operation, found: Mapping[int, RankStanding]) -> Mismatch | None:
    """Return the sides of an operation whose members' signatures differ, None if they agree."""
    if operation.kind is not WaitKind.COLLECTIVE:
        return None
    issued = {
        rank: part
        for rank in operation.members
        if rank in found and (part := find_issued(found[rank].view, operation.group, operation.seq)) is not None
    }
    sides = sides_of(issued)
    return Mismatch(operation=operation, sides=sides) if len(sides) > 1 else None


def in_front_of_queues(found: Mapping[int, RankStanding]) -> dict[int, RankStanding]:
    """Return the standings with each rank in the first of the mismatches that its operation queues behind.

    It does if as many as its backend runs at a time cannot end. Where fewer cannot, the others pass them.
    """
    known: dict[Operation, frozenset[int]] = {}
    return {
        rank: replace(each, blocks=tuple(_moved_to_front(found, block, known) for block in each.blocks))
        if each.standing is Standing.BLOCKED and any(_may_queue(each, block) for block in each.blocks)
        else each
        for rank, each in found.items()
    }


def _may_queue(standing: RankStanding, block: Block) -> bool:
    if block.operation.kind is not WaitKind.COLLECTIVE or block.on_device:
        return False
    group = group_of(standing.view, block.operation.group)
    oldest = None if group is None or group.asynchronous else group.pending
    return oldest is not None and oldest.seq + AT_A_TIME <= block.operation.seq


def _moved_to_front(found: Mapping[int, RankStanding], block: Block, known: dict[Operation, frozenset[int]]) -> Block:
    if not _may_queue(found[block.rank], block):
        return block
    ahead = list(islice(_held_ahead(found, block, known), AT_A_TIME))
    if len(ahead) < AT_A_TIME:
        return block
    operation, first = ahead[0]
    wait = replace(block.wait, seq=first.seq, op=first.op, peer=first.peer, site=first.site, label=first.label)
    return replace(block, operation=operation, wait=wait, issued=first)


def _held_ahead(
    found: Mapping[int, RankStanding], block: Block, known: dict[Operation, frozenset[int]]
) -> Iterator[tuple[Operation, OpView]]:
    """Yield what a rank has issued before the operation that it waits for, and cannot end."""
    view, wanted = found[block.rank].view, block.operation
    group = group_of(view, wanted.group)
    first = wanted.seq if group is None or group.pending is None else group.pending.seq
    for seq in range(first, min(wanted.seq, first + QUEUED_MAX)):
        issued, operation = find_issued(view, wanted.group, seq), replace(wanted, seq=seq)
        # Only of the oldest is it known that it has not ended: a part of a rooted one may have.
        needs_all = issued is not None and (
            issued.op not in ROOTED or (issued.op in TO_ROOT and issued.peer == view.rank)
        )
        if issued is None or not (needs_all or seq == first):
            continue
        if operation not in known:
            unlike = mismatch(operation, found)
            known[operation] = frozenset() if unlike is None else held_by(found, unlike)
        if block.rank in known[operation]:
            yield operation, issued


def held_by(found: Mapping[int, RankStanding], unlike: Mismatch) -> frozenset[int]:
    """Return the members that a mismatch holds up, of those that entered the operation."""
    operation = unlike.operation
    side_of = {rank: number for number, side in enumerate(unlike.sides) for rank in side}
    parts = {
        rank: part
        for rank in operation.members
        if rank in found and (part := find_issued(found[rank].view, operation.group, operation.seq)) is not None
    }
    # Until all have come, one that has not may be who passes the bytes on.
    begun = all(held_back(found[rank], operation) is None for rank in parts)
    settled = begun and len(parts) == len(operation.members) and _together_s(found, operation, parts) >= SETTLED_S
    return frozenset(rank for rank, part in parts.items() if _is_held(found, part, side_of, rank, settled=settled))


def _together_s(found: Mapping[int, RankStanding], operation: Operation, parts: Mapping[int, OpView]) -> float:
    """Return for how long those who wait in an operation have been seen there since the last member came."""
    begun_s, seen_s = [], [0.0]
    for rank, part in parts.items():
        view = found[rank].view
        block = next((block for block in found[rank].blocks if block.operation == operation), None)
        age_s = part.age_s if block is None else block.wait.age_s
        if block is not None or age_s > 0.0:  # 0: its moment is not told
            begun_s.append(view.news_age_s + age_s)
        if block is not None:
            seen_s.append(view.news_age_s + view.taken_s)
    return min(begun_s, default=0.0) - max(seen_s)


def _is_held(
    found: Mapping[int, RankStanding], part: OpView, side_of: Mapping[int, int], rank: int, *, settled: bool
) -> bool:
    if part.op not in ROOTED:
        return True
    root = part.peer
    if root >= 0 and root != rank and root not in side_of:  # it waits for the root, which comes or does not
        return root in found and found[root].standing is Standing.GONE
    if settled:
        return True
    if part.op in TO_ROOT:  # the root needs all members, and they need nobody
        return root == rank
    return root != rank and root in side_of and side_of[root] != side_of.get(rank)


def is_through(standing: RankStanding, operation: Operation) -> bool:
    """Say whether a rank has told that its part of a collective is complete."""
    group = group_of(standing.view, operation.group) if operation.kind is WaitKind.COLLECTIVE else None
    return group is not None and has_completed(group, operation.seq)


def has_completed(group: GroupView, seq: int) -> bool:
    """Say whether a rank has told that an operation of a group is complete there."""
    return not group.blind and not group.untold and group.completed >= seq > 0


def needs_root_first(rank: int, block: Block) -> bool:
    """Say whether a member of a rooted operation may need the root alone, or nobody: all but who gathers from all."""
    return block.wait.op in ROOTED and not (block.wait.op in TO_ROOT and block.wait.peer == rank)


def root_needed(rank: int, block: Block) -> int:
    """Return the rank that a member needs for certain in a rooted operation, -1 where it may need any member.

    Where not all members are known, that may be one of those that are not.
    """
    root = block.wait.peer if block.wait.op in ROOTED else -1
    return -1 if root == rank else root
