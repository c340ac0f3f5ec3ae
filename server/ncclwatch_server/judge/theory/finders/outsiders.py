"""Finds ranks that others wait for and that are in no operation: stopped, still, or merely at work.

A rank that shows any sign of work is late and never a hang.
"""

from collections.abc import Iterable, Sequence

from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, onset_s
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift, find_shift, who_shifted
from ncclwatch_server.judge.theory.histories.stretches import overlong
from ncclwatch_server.judge.theory.lateness import allowed_s, lateness_of, may_compare, time_left, wait_class, waited_in
from ncclwatch_server.judge.theory.phases import class_of
from ncclwatch_server.judge.theory.roots import LateRoot, OutsideRoot, place_of
from ncclwatch_server.judge.theory.stillness import (
    Known,
    Stillness,
    Trouble,
    may_wait_for_another,
    still_s_of,
    stillness,
    works,
)
from ncclwatch_server.judge.theory.waits.rank_standing import Block, Standing
from ncclwatch_server.judge.theory.waits.wait_graph import victims_of

# Of several ranks that stand still, those in the first of these troubles hold up the others.
_WORST_FIRST = (Trouble.STOPPED, Trouble.EXCEPTION, Trouble.BATCHES)


def find_outside(case: Case) -> OutsideRoot | LateRoot | None:
    """Return ranks that keep others waiting without being in an operation themselves."""
    ranks = _awaited(case, case.blocked)
    known = _known(case, ranks)
    found = [(rank, stillness(case, case.views[rank], known.get(rank, Known()))) for rank in ranks]
    stalled = [(rank, still) for rank, still in found if still is not None and still.is_stalled]
    if _waits_for_unnamed(case, ranks) or any(works(case.views[rank]) for rank in ranks):
        stalled = [(rank, still) for rank, still in stalled if not may_wait_for_another(case.views[rank], still)]
    alone = set(_awaited(case, case.unexplained))  # somebody waits for these and for no root that was told already
    if case.told:
        stalled = [(r, s) for r, s in stalled if r in alone or not may_wait_for_another(case.views[r], s)]
    if stalled:
        return _outside(case, stalled)
    return _late(case, sorted(alone)) if alone else None


def _awaited(case: Case, waiting: Iterable[int]) -> list[int]:
    """Return the ranks in no operation that some of these wait for, those left out that were told of already."""
    # Who was stopped inside holds an operation up, too. Each is looked at once: thousands of ranks may be in it.
    frozen = frozenset(rank for rank, each in case.found.items() if each.standing is Standing.FROZEN)
    operations = {block.operation for blocked in waiting for block in case.graph.blocks[blocked]}
    wanted = {
        rank
        for operation in operations
        for rank in (*case.graph.absent[operation], *frozen.intersection(operation.members))
    }
    outside = (Standing.OUTSIDE, Standing.FROZEN)
    return [rank for rank in sorted(wanted - case.told) if case.found[rank].standing in outside]


def _waits_for_unnamed(case: Case, ranks: list[int]) -> bool:
    """Say whether those who wait for these ranks wait for others besides that nobody knows: they may be at work."""
    awaited = (each for each, absent in case.graph.absent.items() if not set(ranks).isdisjoint(absent))
    return any(operation.unnamed or case.graph.untold[operation] for operation in awaited)


def _known(case: Case, ranks: list[int]) -> dict[int, Known]:
    """Return what each of these ranks is waited for with, and for how long it has stood still in that before."""
    found: dict[int, Known] = {}
    for rank, block in waited_in(case, ranks).items():
        kind = class_of([case.views[rank]], block.operation, block.wait.op.value, case.snapshot.stacks)
        habit = case.snapshot.habits.get(kind)
        left_s, timeout_s = time_left(case, (block,))
        found[rank] = Known(
            phase=kind.phase,
            longest_still_s=habit.longest_still_s if habit is not None else 0.0,
            bound_s=allowed_s(case, kind),
            left_s=left_s if timeout_s else float("inf"),
        )
    return found


def _outside(case: Case, stalled: Sequence[tuple[int, Stillness]]) -> OutsideRoot:
    """Return those of the ranks that stand still which are in the worst trouble."""
    troubles = [still.trouble for _, still in stalled]
    worst = next((trouble for trouble in _WORST_FIRST if trouble in troubles), troubles[0])
    ranks = tuple(rank for rank, still in stalled if still.trouble is worst)
    still = next(still for _, still in stalled if still.trouble is worst)
    victims, blocks = _held_up(case, ranks)
    return OutsideRoot(
        hangs=Certainty.STALLED,
        ranks=ranks,
        victims=victims,
        blocks=blocks,
        place=place_of(blocks),
        onset_s=onset_s(blocks),
        still=still,
        waited=wait_class(case, ranks, blocks),
        may_wait=bool(case.told) and may_wait_for_another(case.views[ranks[0]], still),
        shift=_shifted(case, ranks, blocks) if worst is Trouble.ELSEWHERE else None,
    )


def _shifted(case: Case, ranks: Sequence[int], blocks: Sequence[Block]) -> Shift | None:
    """Return the call by which these ranks fell out of step with those that wait for them, None if they did not.

    They stand elsewhere because they are through with what the others are still in.
    """
    operations = {block.operation.group: block.operation for block in blocks if not block.wait.op.is_p2p}
    for group, operation in operations.items():
        shift = find_shift(case.views, group, operation.members)
        shifted = who_shifted(case.views, operation.members, shift) if shift is not None else None
        if shifted is not None and set(ranks) <= set(shifted.ranks):
            return shifted
    return None


def _late(case: Case, alone: Sequence[int]) -> LateRoot:
    ranks = tuple(alone)
    victims, blocks = _held_up(case, ranks)
    kind = wait_class(case, ranks, blocks)
    left_s, timeout_s = time_left(case, blocks)
    found = [overlong(case, rank, blocks) for rank in ranks] if may_compare(case, kind) else [None]
    longer = found[0] if all(each is not None for each in found) else None
    return LateRoot(
        hangs=Certainty.LATE,
        ranks=ranks,
        victims=victims,
        blocks=blocks,
        place=place_of(blocks),
        onset_s=onset_s(blocks),
        still_s=min((still_s_of(case.views[rank]) for rank in ranks), default=0.0),
        waited=kind,
        lateness=lateness_of(case, kind, blocks, (left_s, timeout_s), overlong=longer is not None),
        left_s=left_s,
        timeout_s=timeout_s,
        overlong=longer,
    )


def _held_up(case: Case, ranks: Sequence[int]) -> tuple[tuple[int, ...], tuple[Block, ...]]:
    """Return who waits for ranks, and in what."""
    victims = tuple(rank for rank in victims_of(case.graph, ranks) if rank not in ranks)
    return victims, tuple(block for rank in victims for block in case.found[rank].blocks)
