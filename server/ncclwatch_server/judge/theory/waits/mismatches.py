"""Finds collectives that members entered with different signatures, and whom that holds up.

A mismatch holds up each member that needs one of another side. In a synchronising collective that is everybody. In a
rooted one it depends on the root: it only sends in a broadcast or a scatter, others only send to it in a gather or a
reduce, and a tree may reach a member through its own side alone. So a member of the root's side may go on until it has
stayed where it is for longer than a transfer takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ncclwatch.contract.model.rank import GroupView, Op, OpView, WaitKind
from ncclwatch_server.judge.theory.waits.rank_standing import (
    Block,
    Operation,
    RankStanding,
    Standing,
    find_issued,
    group_of,
    sides_of,
)

FROM_ROOT = frozenset((Op.BROADCAST, Op.SCATTER))
TO_ROOT = frozenset((Op.REDUCE, Op.GATHER))
# A member of these may need the root alone, or nobody.
ROOTED = FROM_ROOT | TO_ROOT
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
    settled = len(parts) == len(operation.members) and _together_s(found, operation, parts) >= SETTLED_S
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
