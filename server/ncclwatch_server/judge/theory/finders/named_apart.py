"""Finds ranks that wait in groups, or in new_group, because one side has made a group more than the others."""

from collections import Counter
from collections.abc import Sequence

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, onset_s
from ncclwatch_server.judge.theory.finders.meetings import unexplained_blocks
from ncclwatch_server.judge.theory.histories.lines.call_sites import rank_condition
from ncclwatch_server.judge.theory.roots import NamedApartRoot, Place
from ncclwatch_server.judge.theory.waits.group_identity import name_of
from ncclwatch_server.judge.theory.waits.made_groups import (
    Made,
    Unequal,
    by_most,
    unequal_groups,
    unequal_members,
    unequal_names,
    unequal_numbers,
)
from ncclwatch_server.judge.theory.waits.proof import held_together
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Operation
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

CROSSED_S = 8.0  # all in a collective: it may be under way
ALONE_S = 8.0  # all in new_group: one may still be on its way out of another one of the same members


def find_named_apart(case: Case) -> NamedApartRoot | None:
    """Return the ranks for whose group others wait, as these hold another one under its name."""
    blocks = unexplained_blocks(case)
    alone = _made_alone(case, blocks)
    if alone is not None and alone.unequal.alone:
        return alone
    if not any(_may_be_named_apart(block) for block in blocks):
        return alone
    found = unequal_groups(case.views) or _unlike(blocks) or _apart(case, blocks)
    crossed = _crossed(case, blocks) if found is not None else frozenset()
    stuck = tuple(
        block
        for block in blocks
        if found is not None
        and _is_later(block, found)
        and (block.operation in crossed or _is_held_up(case, block, found))
    )
    if found is None or not stuck:
        return alone
    found = by_most(found, {block.rank: block.wait for block in stuck if block.wait.kind is WaitKind.NEW_GROUP})
    sites = {rank: made.site for made in found.extra for rank in made.ranks}
    note = rank_condition(case.views[min(sites)], sites[min(sites)], "new_group")
    decided = found.decided or (found.usual is not None and note is not None)
    others = found.usual.ranks if found.usual is not None else ()
    makers = tuple(sorted(others if found.missed else sites if decided else {*sites, *others}))
    waiting = {block.rank for block in stuck}
    held = waiting.union(
        rank for rank in makers if rank in case.graph.blocks
    )  # a maker at work holds nobody up for ever
    # Some who meet by a wrong name may come through, or find an error.
    may_end = found.shared or any(block.operation in crossed for block in stuck)
    return NamedApartRoot(
        hangs=Certainty.STALLED if may_end else Certainty.PROVEN,
        ranks=makers,
        decided=decided,
        victims=tuple(sorted({*waiting, *victims_of(case.graph, held)} - set(makers))),
        blocks=stuck,
        place=Place(group=str(found.number), op=WaitKind.NEW_GROUP.value),
        onset_s=onset_s(stuck),
        unequal=found,
        note=note,
    )


def _made_alone(case: Case, blocks: Sequence[Block]) -> NamedApartRoot | None:
    """Return the members of a group who all make it, those alone or all ranks, and not under one name."""
    together: dict[Operation, list[Block]] = {}
    for block in blocks:
        if block.operation.kind is WaitKind.NEW_GROUP and block.wait.members:
            together.setdefault(block.operation, []).append(block)
    for operation, stuck in together.items():
        waits = {block.rank: block.wait for block in stuck}
        if waits.keys() != set(operation.members) or onset_s(stuck) < ALONE_S or not held_together(case.views, stuck):
            continue
        by_number = any(wait.seq for wait in waits.values())
        found = unequal_numbers(waits) if by_number else unequal_names(case.views, waits)
        if found is not None:
            makers = tuple(sorted(rank for made in found.extra for rank in made.ranks))
            return NamedApartRoot(
                hangs=Certainty.STALLED,
                ranks=makers,
                decided=found.decided,
                victims=tuple(sorted({*waits, *victims_of(case.graph, waits)} - set(makers))),
                blocks=tuple(stuck),
                place=Place(op=WaitKind.NEW_GROUP.value),
                onset_s=onset_s(stuck),
                unequal=found,
                note=None,
            )
    return None


def _unlike(blocks: Sequence[Block]) -> Unequal | None:
    """Return who makes groups of different members under one number, where that has lasted."""
    waits = {each.rank: each.wait for each in blocks if each.wait.kind is WaitKind.NEW_GROUP}
    return unequal_members({rank: wait for rank, wait in waits.items() if wait.age_s >= ALONE_S})


def _apart(case: Case, blocks: Sequence[Block]) -> Unequal | None:
    """Return groups of one name without a common member, of which one makes no progress.

    Each was made by its members only, and they may have met those of another one. Where all ranks make all groups,
    these have different names. A group that has completed anything has met its own members; and a device connects in
    its first collective, for as long as it takes.
    """
    first = [block for block in blocks if block.operation.seq == 1 and not block.on_device and _is_crossed(case, block)]
    for name in dict.fromkeys(name_of(block.operation.group) for block in first):
        held: dict[tuple[int, ...], list[int]] = {}
        sites = {}
        for rank, view in case.views.items():
            for group in view.groups:
                if name.isdecimal() and name_of(group.name) == name and group.ranks:
                    held.setdefault(group.ranks, []).append(rank)
                    sites[group.ranks] = group.site
        if len(held) > 1 and sum(map(len, held)) == len({rank for members in held for rank in members}):
            sides = (Made(ranks=tuple(ranks), members=members, site=sites[members]) for members, ranks in held.items())
            return Unequal(number=int(name), extra=tuple(sides), usual=None, shared=True)
    return None


def _is_crossed(case: Case, block: Block) -> bool:
    return block.wait.age_s >= CROSSED_S and name_of(block.operation.group) != "0" and _have_all_entered(case, block)


def _may_be_named_apart(block: Block) -> bool:
    return block.operation.kind is WaitKind.NEW_GROUP or name_of(block.operation.group).isdecimal()


def _is_later(block: Block, found: Unequal) -> bool:
    """Say whether a group was made after ranks had made different ones."""
    if block.operation.kind is WaitKind.NEW_GROUP:
        return block.wait.seq >= found.number
    name = name_of(block.operation.group)
    return name.isdecimal() and int(name) >= found.number


def _is_held_up(case: Case, block: Block, found: Unequal) -> bool:
    """Say whether a rank makes, or uses, a group that others know by another name."""
    if block.operation.kind is WaitKind.NEW_GROUP:
        sides = (*found.extra, *((found.usual,) if found.usual is not None else ()))
        inside = sum(not set(block.wait.members).isdisjoint(each.ranks) for each in sides)
        # Where all of them have made it so, they count alike, and meet under a later number.
        here = block.wait.seq == found.number
        alike = any(
            block.wait.members == each.members and (here or not set(each.members) <= set(each.ranks))
            for each in found.extra
            if block.rank in each.ranks
        )
        return found.swapped or not block.wait.members or inside > 1 or alike
    return any(
        all(group.name != block.operation.group for group in case.views[rank].groups)
        for rank in case.graph.absent[block.operation]
    )


def _crossed(case: Case, blocks: Sequence[Block]) -> frozenset[Operation]:
    """Return the collectives that all have entered, of groups that share their name and members with other groups.

    Through the store, each finds the others of its group by that name: they may have connected to the wrong ones.
    """
    inside = {block.operation for block in blocks if _is_crossed(case, block)}
    if not inside:
        return frozenset()
    groups = {group.name: group.ranks for view in case.views.values() for group in view.groups}
    lists = Counter(map(name_of, groups))
    return frozenset(each for each in inside if lists[name_of(each.group)] > 1)


def _have_all_entered(case: Case, block: Block) -> bool:
    operation = block.operation
    if operation.kind is not WaitKind.COLLECTIVE or operation.unnamed:
        return False
    graph = case.graph
    return not (graph.absent[operation] or graph.untold[operation] or graph.unseen[operation])
