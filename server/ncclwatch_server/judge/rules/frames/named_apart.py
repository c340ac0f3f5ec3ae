"""Tells of ranks that wait in groups, or in new_group, because one side has made a group more than the others."""

from ncclwatch.contract.model.verdict import Cause, Evidence
from ncclwatch.contract.words.text import ranks_words
from ncclwatch_server.judge.explanation import Explanation
from ncclwatch_server.judge.telling.evidence import block_evidence, culprit, source_evidence
from ncclwatch_server.judge.telling.words import at, at_line, counts_words, waiting_words
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.roots import NamedApartRoot
from ncclwatch_server.judge.theory.waits.made_groups import Made, Unequal

ADVICE = (
    "Call new_group on all ranks of the job in the same order, also on those outside the group. Or pass "
    "use_local_synchronization=True, which only its members call."
)
LAW = (
    "torch names a group by how many a rank has made before, so all ranks of the job have to call new_group for each "
    "group, also those that are not in it"
)
ADVICE_ALONE = (
    "Make such groups while all their members know equally many: before groups that only some of them are in. Or "
    "call new_group without use_local_synchronization, on all ranks of the job in the same order."
)


def tell(case: Case, root: NamedApartRoot, cause: Cause) -> Explanation:
    """Return what is told of ranks that hold different groups under one name, for a cause."""
    found = root.unequal
    if found.held:
        return _tell_alone(case, root, cause)
    extra = {rank: made.site for made in found.extra for rank in made.ranks}
    sites = {**(dict.fromkeys(found.usual.ranks, found.usual.site) if found.usual else {}), **extra}
    condition = f" (under `{root.note.condition}`)" if root.note is not None else ""
    return Explanation(
        cause=cause,
        summary=f"{_made_words(found)}{condition}; {waiting_words(case, root.blocks)}.",
        explanation=(
            f"{LAW}. Here group {found.number} is "
            f"{'; and '.join(_side_words(made) for made in _sides(found))}. "
            f"{_after(found)}"
        ),
        advice=ADVICE,
        culprits=tuple(
            culprit(case.views[rank], sites[rank], "made a group more" if rank in extra else "made a group less")
            for rank in root.ranks
        ),
        victims=root.victims,
        one_of=not root.decided,
        evidence=_evidence(case, root),
    )


def _tell_alone(case: Case, root: NamedApartRoot, cause: Cause) -> Explanation:
    """Return what is told of members that make one group without the other ranks, under different names."""
    alone, held, sites = root.unequal.alone, root.unequal.held, {block.rank: block.wait.site for block in root.blocks}
    counts = counts_words(held)
    where = at_line(root.blocks[0].wait.site)
    return Explanation(
        cause=cause,
        summary=(
            f"{ranks_words(sorted(held))} wait in new_group{where}{', with use_local_synchronization,' * alone} under "
            "different names of the group."
        ),
        explanation=(
            "torch takes the number of groups that a rank knows into the name of a group that only its members make. "
            f"Groups known when they came there: {counts}."
            if alone
            else f"{LAW}. Number of this group: {counts}."
        ),
        advice=ADVICE_ALONE if alone else ADVICE,
        culprits=tuple(
            culprit(case.views[rank], sites[rank], f"knew {held[rank]} groups" if alone else f"made it as {held[rank]}")
            for rank in root.ranks
        ),
        victims=root.victims,
        one_of=not root.decided,
        evidence=tuple(block_evidence(block) for block in root.blocks[:16]),
    )


def _after(found: Unequal) -> str:
    if found.swapped:
        return "Members of one have met members of the other under that name, and those left over meet nobody."
    if found.shared:
        return "By that name, members of one may have met members of the other."
    return "From there on, the ranks wait in groups of different names."


def _sides(found: Unequal) -> tuple[Made, ...]:
    return (*found.extra, *((found.usual,) if found.usual else ()))


def _made_words(found: Unequal) -> str:
    sites = {each.site for each in found.extra}
    if found.usual is None and len(sites) == 1:
        makers = " and ".join(ranks_words(each.ranks) for each in found.extra)
        return f"{makers} called new_group{at_line(found.extra[0].site)} for different groups"
    if found.usual is None:
        makers = " or ".join(f"{ranks_words(each.ranks)}{at_line(each.site)}" for each in found.extra)
        return f"{makers} called new_group once more than the other ranks"
    others = ranks_words(found.usual.ranks)
    if found.swapped:
        odd = "; ".join(f"{ranks_words(each.ranks)} called new_group{_of(each)}" for each in found.extra)
        return f"{odd}{at_line(found.extra[0].site)} where the other ranks called it{_of(found.usual)}"
    made = "; ".join(
        f"{ranks_words(each.ranks)} called new_group{_of(each)}{at_line(each.site)}" for each in found.extra
    )
    if found.missed:
        as_others = (f"{_of(each)}, as {ranks_words(each.ranks)} did{at_line(each.site)}" for each in found.extra)
        return f"{others} did not call new_group{' nor'.join(as_others)}"
    return f"{made}, which {others} did not call"


def _of(made: Made) -> str:
    return f" for {ranks_words(made.members)}" if made.members else ""


def _side_words(made: Made) -> str:
    if not made.members:
        return f"another one for {ranks_words(made.ranks)}, which they are making{at(made.site)}"
    line = f", made{at(made.site)}" if made.site is not None else ""
    return f"that of {ranks_words(made.members)} for {ranks_words(made.ranks)}{line}"


def _evidence(case: Case, root: NamedApartRoot) -> tuple[Evidence, ...]:
    found = root.unequal
    facts = [
        Evidence(source="ring", rank=made.ranks[0], fact=f"group {found.number} is {_side_words(made)}")
        for made in _sides(found)
    ]
    facts += [block_evidence(block) for block in root.blocks[:16]]
    for made in found.extra:
        facts += source_evidence(case.views[made.ranks[0]], made.site)
    return tuple(facts)
