"""Ranks that wait in groups, or in new_group, because one side has made a group more than the others."""

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.contract.model.verdict import Cause, Certainty, Evidence
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation, Told
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit, source_evidence
from ncclwatch_server.judge.telling.words import at, waiting_words
from ncclwatch_server.judge.theory.case import Case, explained, onset_s
from ncclwatch_server.judge.theory.histories.call_sites import rank_condition
from ncclwatch_server.judge.theory.roots import Place
from ncclwatch_server.judge.theory.waits.group_identity import name_of
from ncclwatch_server.judge.theory.waits.made_groups import Made, Unequal, unequal_groups
from ncclwatch_server.judge.theory.waits.rank_standing import Block
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

ADVICE_NEW_GROUP = (
    "Call new_group on all ranks of the job, in one order, also on those that will not be in the group; or pass "
    "use_local_synchronization=True, which only its members need to call and which names it by them."
)


def extra_groups(case: Case) -> tuple[Told, ...]:
    """Judge waits for ranks that hold another group under the name of the one that is waited in."""
    blocks = [block for rank in case.unexplained for block in case.graph.blocks[rank]]
    if not any(_may_be_named_apart(block) for block in blocks):
        return ()
    found = unequal_groups(case.views)
    stuck = [block for block in blocks if found is not None and _is_held_up(case, block, found)]
    return (_verdict(case, found, stuck),) if found is not None and stuck else ()


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


def _verdict(case: Case, found: Unequal, stuck: list[Block]) -> Told:
    makers = tuple(sorted(rank for made in found.extra for rank in made.ranks))
    sites = {rank: made.site for made in found.extra for rank in made.ranks}
    waiting = {block.rank for block in stuck}
    victims = tuple(sorted({*waiting, *victims_of(case.graph, {*makers, *waiting})} - set(makers)))
    note = rank_condition(case.views[makers[0]], sites[makers[0]], "new_group")
    condition = f", under `{note.condition}`" if note is not None else ""
    return Told(
        said=Explanation(
            cause=Cause.RANK_CONDITIONAL_COLLECTIVE if note is not None else Cause.INIT_INCOMPLETE,
            summary=f"{_made_words(found)}{condition}; {waiting_words(case.views, stuck)}.",
            explanation=(
                "torch names a group by how many a rank has made before, so all ranks of the job have to call "
                f"new_group for each group, also those that are not in it. Here group {found.number} is "
                f"{'; and '.join(map(_side_words, (*found.extra, *((found.usual,) if found.usual else ()))))}. "
                "From there on they wait for each other in groups of different names."
            ),
            advice=ADVICE_NEW_GROUP,
            culprits=tuple(culprit(case.views[rank], sites[rank], "made a group more") for rank in makers),
            victims=victims,
            one_of=found.usual is None,
            evidence=_evidence(case, found, stuck),
        ),
        certainty=Certainty.PROVEN,
        place=Place(group=str(found.number), op=WaitKind.NEW_GROUP.value),
        onset_s=onset_s(stuck),
        explained=explained(case, {*makers, *victims}),
    )


def _made_words(found: Unequal) -> str:
    if found.usual is None:
        makers = " or ".join(f"{ranks_words(each.ranks)}{at(each.site)}" for each in found.extra)
        return f"one of: {makers} made a group more"
    others = ranks_words(found.usual.ranks)
    made = "; ".join(f"{ranks_words(each.ranks)} made a group{_of(each)}{at(each.site)}" for each in found.extra)
    return f"{made}, which {others} did not make"


def _of(made: Made) -> str:
    return f" of {ranks_words(made.members)}" if made.members else ""


def _side_words(made: Made) -> str:
    if not made.members:
        return f"another one for {ranks_words(made.ranks)}, which they are making{at(made.site)}"
    line = f", made{at(made.site)}" if made.site is not None else ""
    return f"that of {ranks_words(made.members)} for {ranks_words(made.ranks)}{line}"


def _evidence(case: Case, found: Unequal, stuck: list[Block]) -> tuple[Evidence, ...]:
    facts = [
        Evidence(source="ring", rank=made.ranks[0], fact=f"group {found.number} is {_side_words(made)}")
        for made in (*found.extra, *((found.usual,) if found.usual else ()))
    ]
    facts += [block_evidence(block) for block in stuck[:16]]
    for made in found.extra:
        facts += source_evidence(case.views[made.ranks[0]], made.site)
    return tuple(facts)
