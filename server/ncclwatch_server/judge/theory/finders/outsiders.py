"""Finds ranks that others wait for and that are in no operation: stopped, still, or merely at work.

A rank that shows any sign of work is late and never a hang.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import RankView
from ncclwatch.contract.model.verdict import Certainty, Lateness
from ncclwatch_server.judge.theory.case import Case, main_thread, onset_s
from ncclwatch_server.judge.theory.finders.pieces import Pieces
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift, find_shift, who_shifted
from ncclwatch_server.judge.theory.histories.stretches import overlong
from ncclwatch_server.judge.theory.lateness import allowed_s, lateness_of, may_compare, time_left, wait_class, waited_in
from ncclwatch_server.judge.theory.moments import awaited_s
from ncclwatch_server.judge.theory.phases import class_of
from ncclwatch_server.judge.theory.places import place_of as place_in
from ncclwatch_server.judge.theory.roots import ROOTS_ALIKE_MAX, Found, LateRoot, OutsideRoot, Root, place_of
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
APART_S_MAX = 600.0  # for which a rank may wait for one of another role; longer than most batches of rollouts take
MEANWHILE = 0.5  # who is at something that another one waits for has been at it for this share of that time, at least

_Still = Sequence[tuple[int, Stillness]]
_Parted = Callable[[Iterable[int]], Iterable[Sequence[int]]]  # ranks by piece


@dataclass(frozen=True, slots=True, kw_only=True)
class _Awaited:
    """The ranks in no operation that others wait for."""

    alone: frozenset[int]  # somebody waits for these and for no root that was told already
    for_s: Mapping[int, float]  # for how long each had been waited for when its view was taken
    beside_unnamed: frozenset[int]  # who waits for these waits for others besides that nobody knows
    busy_s: Mapping[int, float]  # for how long each rank that works has been waited for
    apart_s: float  # for how long a rank that works, and that nobody waits for, has met no other one


def find_outside(case: Case) -> Found:
    """Return ranks that keep others waiting without being in an operation themselves, by the piece of the waits."""
    ranks = _awaited(case, case.blocked)
    if not ranks:
        return ()
    alone = _awaited(case, case.unexplained) if case.explained else ranks
    # One rank and those who wait for it are one piece.
    parted = Pieces(case.graph).parted if len(ranks) > 1 else _as_one
    still = _all_still(case, ranks)
    if still:
        awaited = _all_awaited(case, ranks, alone)
        # What is known of a rank is as old as its view: who came to wait since says nothing about it.
        still = {rank: each for rank, each in still.items() if awaited.for_s[rank] > 0}
        stalled = [held for part in parted(ranks) if (held := _stalled(case, part, still, awaited))]
        if stalled:
            return _still_ones(case, [_in_worst_trouble(each) for each in stalled], parted)
    return _late_ones(case, alone, parted)


def _as_one(ranks: Iterable[int]) -> list[tuple[int, ...]]:
    return [tuple(ranks)]


def _all_still(case: Case, ranks: Sequence[int]) -> dict[int, Stillness]:
    """Return those of these ranks that have stood still for longer than what they are waited for with takes."""
    standing = [rank for rank in ranks if still_s_of(case.views[rank]) > 0 and not _has_waited_for_a_rank(case, rank)]
    known = _known(case, standing) if standing else {}
    found = {rank: stillness(case, case.views[rank], known.get(rank, Known())) for rank in standing}
    return {rank: each for rank, each in found.items() if each is not None and each.is_stalled}


def _has_waited_for_a_rank(case: Case, rank: int) -> bool:
    """Say whether a rank waited for a lock of another one, which lives and was not seen at the same time.

    Where the two were seen together this is a wait like any other. Else that one may have let go of it since.
    """
    view = case.views[rank]
    holder = (view.host, view.process.lock_holder)
    return holder[1] > 0 and any(
        (other.host, other.pid) == holder and other.ending is None for other in case.views.values() if other is not view
    )


def _all_awaited(case: Case, ranks: Sequence[int], alone: Sequence[int]) -> _Awaited:
    blocks = [block for blocks in case.graph.blocks.values() for block in blocks]
    for_s = awaited_s(case.views, blocks, ranks)
    unsure = (absent for each, absent in case.graph.absent.items() if each.unnamed or case.graph.untold[each])
    unnamed_s = max((block.wait.age_s for block in blocks if block.operation.unnamed), default=0.0)
    # Who waits for members that nobody knows may wait for anyone that is in no operation.
    others = _outside_of_all(case).difference(ranks) if unnamed_s else ()
    busy_s = {rank: for_s.get(rank, unnamed_s) for rank in (*ranks, *others) if works(case.views[rank])}
    return _Awaited(
        alone=frozenset(alone),
        for_s=for_s,
        beside_unnamed=frozenset(rank for absent in unsure for rank in absent),
        busy_s=busy_s,
        apart_s=max((_apart_s(case.views[rank]) for rank in _outside_of_all(case).difference(ranks)), default=0.0),
    )


def _apart_s(view: RankView) -> float:
    """Return for how long a rank has worked since its newest operation, in seconds; 0 if it does not, or had none."""
    return view.history[-1].age_s if view.history and works(view) else 0.0


def _outside_of_all(case: Case) -> frozenset[int]:
    return frozenset(rank for rank, each in case.found.items() if each.standing is Standing.OUTSIDE)


def _stalled(case: Case, part: Sequence[int], still: Mapping[int, Stillness], awaited: _Awaited) -> _Still:
    """Return the ranks of one piece that stand still, and not because another rank is at work, as far as is known."""
    stalled = [(rank, still[rank]) for rank in part if rank in still]
    if not stalled:
        return ()
    unsure = not awaited.beside_unnamed.isdisjoint(part)
    busy = [case.views[rank] for rank in part if works(case.views[rank])]
    stalled = [
        (rank, why)
        for rank, why in stalled
        if not (unsure or any(not _is_at_the_same(case.views[rank], why, each) for each in busy))
        or not may_wait_for_another(case.views[rank], why)
    ]
    stalled = [(r, s) for r, s in stalled if not _may_wait_for_neighbour(case, case.views[r], s, awaited)]
    if case.told:
        stalled = [(r, s) for r, s in stalled if r in awaited.alone or not may_wait_for_another(case.views[r], s)]
    return stalled


def _is_at_the_same(view: RankView, still: Stillness, other: RankView) -> bool:
    """Say whether another rank sits in the same call as one that stands still, while some other thread of it works.

    Whoever fetches what the others look for is in another call, or comes and goes in it.
    """
    ours, theirs = main_thread(view), main_thread(other)
    if ours is None or theirs is None or not ours.leaf or ours.leaf != theirs.leaf:
        return False
    return theirs.same_s >= MEANWHILE * still.still_s


def _may_wait_for_neighbour(case: Case, view: RankView, still: Stillness, awaited: _Awaited) -> bool:
    """Say whether a rank may wait, by means that nobody records, for one of its node that others wait for as well.

    Of several ranks that look for a file which one of them fetches, each may keep a group of its own waiting. Who has
    come from an operation meanwhile is at its own steps. One that does other work than the ranks that meet, such as the
    actors of reinforcement learning, may be waited for on any node.
    """
    if not may_wait_for_another(view, still):
        return False
    least_s = MEANWHILE * still.still_s
    if awaited.apart_s >= least_s and still.still_s < APART_S_MAX:
        return True
    busy = (case.views[rank] for rank, busy_s in awaited.busy_s.items() if busy_s >= least_s)
    return any(other.host == view.host and not _is_at_the_same(view, still, other) for other in busy)


def _still_ones(case: Case, stalled: Sequence[_Still], parted: _Parted) -> Found:
    """Return what stands still in each of several pieces."""
    pieces = _with_waits(case, sorted(rank for part in stalled for rank, _ in part), parted)
    why = dict(each for part in stalled for each in part)
    # A piece without any of them is one of ranks that name themselves among no members: nothing is known of it.
    roots = [_outside(case, [(rank, why[rank]) for rank in ranks], blocks) for ranks, blocks in pieces if ranks]
    return _at_one_place(case, [(root.still.trouble, root) for root in roots])


def _with_waits(case: Case, ranks: Sequence[int], parted: _Parted) -> list[tuple[tuple[int, ...], list[Block]]]:
    """Return ranks by piece, each with the waits of those that it holds up."""
    waits: dict[int, list[Block]] = {}
    for rank in victims_of(case.graph, ranks):
        waits.setdefault(rank, []).extend(case.found[rank].blocks)
    found = []
    for part in parted((*ranks, *waits)):
        blocks = [block for rank in part for block in waits.get(rank, ())]
        found.append((tuple(rank for rank in part if rank not in waits), blocks))
    return found


def _at_one_place(case: Case, roots: Sequence[tuple[object, Root]]) -> Found:
    """Return the roots of several pieces, those together that are alike and at the same lines."""
    if len(roots) == 1:
        return ((roots[0][1],),)
    alike: dict[object, list[Root]] = {}
    for kind, root in roots:
        places = frozenset(place_in(case, case.views[rank]) for rank in root.ranks)
        alike.setdefault((kind, places), []).append(root)
    together: list[Sequence[Root]] = []
    for each in list(alike.values())[:ROOTS_ALIKE_MAX]:
        more = tuple(rank for root in each[ROOTS_ALIKE_MAX:] for rank in (*root.ranks, *root.victims))
        first = replace(each[0], others_alike=more) if more else each[0]
        together.append((first, *each[1:ROOTS_ALIKE_MAX]))
    return together


def _in_worst_trouble(stalled: _Still) -> _Still:
    troubles = [still.trouble for _, still in stalled]
    worst = next((trouble for trouble in _WORST_FIRST if trouble in troubles), troubles[0])
    return [(rank, still) for rank, still in stalled if still.trouble is worst]


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
    held = [rank for rank in frozen & wanted if victims_of(case.graph, (rank,))]  # else others are away as well
    return [r for r in sorted(wanted - case.told) if r in held or case.found[r].standing is Standing.OUTSIDE]


def _known(case: Case, ranks: Sequence[int]) -> dict[int, Known]:
    """Return what each of these ranks is waited for with, and for how long it has stood still in that before."""
    found: dict[int, Known] = {}
    for rank, block in waited_in(case, ranks).items():
        kind = class_of([case.views[rank]], block.operation, block.wait.op.value, case.snapshot.stacks)
        habit = case.snapshot.habits.get(kind)
        left_s, timeout_s = time_left(case, (block,))
        found[rank] = Known(
            phase=kind.phase,
            longest_still_s=habit.longest_still_s if habit is not None else 0.0,
            often_still_s=habit.often_still_s if habit is not None else 0.0,
            bound_s=allowed_s(case, kind),
            left_s=left_s if timeout_s else float("inf"),
        )
    return found


def _outside(case: Case, stalled: _Still, blocks: Sequence[Block]) -> OutsideRoot:
    """Return the root of ranks that stand still in one trouble, and hold these waits up."""
    ranks, still = tuple(rank for rank, _ in stalled), stalled[0][1]
    return OutsideRoot(
        hangs=Certainty.STALLED,
        ranks=ranks,
        victims=tuple(dict.fromkeys(block.rank for block in blocks)),
        blocks=tuple(blocks),
        place=place_of(blocks),
        onset_s=onset_s(blocks),
        still=still,
        waited=wait_class(case, ranks, blocks),
        may_wait=bool(case.told) and may_wait_for_another(case.views[ranks[0]], still),
        shift=_shifted(case, ranks, blocks) if still.trouble is Trouble.ELSEWHERE else None,
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


def _late_ones(case: Case, ranks: Sequence[int], parted: _Parted) -> Found:
    """Return ranks that work: those of each piece in which that is worth a word, and all others together."""
    if not ranks:
        return ()
    roots = [_late(case, late, blocks) for late, blocks in _with_waits(case, ranks, parted)]
    worth = [((root.lateness, root.waited), root) for root in roots if root.lateness is not Lateness.NONE]
    others = [root for root in roots if root.lateness is Lateness.NONE]
    told = _at_one_place(case, worth)
    if len(others) < 2:
        return (*told, others) if others else told
    blocks = sorted((block for root in others for block in root.blocks), key=lambda block: block.rank)
    ranks = sorted(rank for root in others for rank in root.ranks)
    return (*told, (_late(case, ranks, blocks, compared=True),))


def _late(case: Case, ranks: Sequence[int], blocks: Sequence[Block], *, compared: bool = False) -> LateRoot:
    """Return the root of ranks that work. `compared`: with others, and none of them needs longer than these do."""
    kind = wait_class(case, ranks, blocks)
    left_s, timeout_s = time_left(case, blocks)
    compares = not compared and may_compare(case, kind)
    found = [overlong(case, rank, blocks) for rank in ranks] if compares else [None]
    longer = found[0] if all(each is not None for each in found) else None
    return LateRoot(
        hangs=Certainty.LATE,
        ranks=tuple(ranks),
        victims=tuple(dict.fromkeys(block.rank for block in blocks)),
        blocks=tuple(blocks),
        place=place_of(blocks),
        onset_s=onset_s(blocks),
        still_s=min((still_s_of(case.views[rank]) for rank in ranks), default=0.0),
        waited=kind,
        lateness=lateness_of(case, kind, blocks, (left_s, timeout_s), overlong=longer is not None),
        left_s=left_s,
        timeout_s=timeout_s,
        overlong=longer,
    )
