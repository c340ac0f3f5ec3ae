"""Finds ranks that wait in groups, or in new_group, because one side has made a group more than the others."""

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, onset_s
from ncclwatch_server.judge.theory.finders.meetings import unexplained_blocks
from ncclwatch_server.judge.theory.histories.call_sites import rank_condition
from ncclwatch_server.judge.theory.roots import NamedApartRoot, Place
from ncclwatch_server.judge.theory.waits.group_identity import name_of
from ncclwatch_server.judge.theory.waits.made_groups import Unequal, unequal_groups
from ncclwatch_server.judge.theory.waits.rank_standing import Block
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of


def find_named_apart(case: Case) -> NamedApartRoot | None:
    """Return the ranks for whose group others wait, as these hold another one under its name."""
    blocks = unexplained_blocks(case)
    if not any(_may_be_named_apart(block) for block in blocks):
        return None
    found = unequal_groups(case.views)
    stuck = tuple(block for block in blocks if found is not None and _is_held_up(case, block, found))
    if found is None or not stuck:
        return None
    sites = {rank: made.site for made in found.extra for rank in made.ranks}
    makers = tuple(sorted(sites))
    waiting = {block.rank for block in stuck}
    return NamedApartRoot(
        hangs=Certainty.PROVEN,
        ranks=makers,
        decided=found.usual is not None,
        victims=tuple(sorted({*waiting, *victims_of(case.graph, {*makers, *waiting})} - set(makers))),
        blocks=stuck,
        place=Place(group=str(found.number), op=WaitKind.NEW_GROUP.value),
        onset_s=onset_s(stuck),
        unequal=found,
        note=rank_condition(case.views[makers[0]], sites[makers[0]], "new_group"),
    )


def _may_be_named_apart(block: Block) -> bool:
    return block.operation.kind is WaitKind.NEW_GROUP or name_of(block.operation.group).isdecimal()


def _is_held_up(case: Case, block: Block, found: Unequal) -> bool:
    """Say whether a rank makes, or uses, a group that others know by another name."""
    if block.operation.kind is WaitKind.NEW_GROUP:
        return block.wait.seq >= found.number
    name = name_of(block.operation.group)
    later = name.isdecimal() and int(name) >= found.number
    return later and any(
        all(group.name != block.operation.group for group in case.views[rank].groups)
        for rank in case.graph.absent[block.operation]
    )
