"""Finds the roots of a hang that are proven: mismatches, ranks that are gone, groups that are destroyed, and circles.

A finder returns one root, or several that one mistake of the program has made: they stand at the same lines, and are
told together. It looks for those that are no ranks and no victims of roots that were told already.
"""

from collections.abc import Sequence
from dataclasses import replace

from ncclwatch.contract.model.rank import CallSite, Ending, Op, RankView, SourceNote, WaitKind
from ncclwatch.contract.model.verdict import Certainty
from ncclwatch_server.judge.theory.case import Case, main_thread, onset_s
from ncclwatch_server.judge.theory.circles import BY_ONE_S, find_circles
from ncclwatch_server.judge.theory.ends.causes import Went, find_ends, followers
from ncclwatch_server.judge.theory.ends.kinds import ended_s_ago, has_given_up, is_clean
from ncclwatch_server.judge.theory.histories.batches import ran_out_as_well
from ncclwatch_server.judge.theory.histories.forwards import OneSided, one_sided_forward
from ncclwatch_server.judge.theory.histories.lines.call_sites import parting_condition, rank_condition
from ncclwatch_server.judge.theory.histories.odd_side import Side
from ncclwatch_server.judge.theory.histories.parting import Parting, kin_of, partings
from ncclwatch_server.judge.theory.histories.programs import run_apart
from ncclwatch_server.judge.theory.leaving import STAYED, alone_root, left_a_group, left_before
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.moments import has_lasted
from ncclwatch_server.judge.theory.roots import (
    ROOTS_ALIKE_MAX,
    AloneRoot,
    CircleRoot,
    DestroyedRoot,
    Found,
    GoneRoot,
    MismatchRoot,
    Place,
    place_of,
)
from ncclwatch_server.judge.theory.waits.mismatches import Mismatch, held_by, is_through
from ncclwatch_server.judge.theory.waits.rank_standing import (
    Block,
    Operation,
    RankStanding,
    Standing,
    find_issued,
    group_of,
)
from ncclwatch_server.judge.theory.waits.wait_graph import doomed_without_the_gone, victims_of

ABANDONED_S = 2.5  # a rank that destroyed its groups at its end is gone by then, and looked at as such


def find_mismatches(case: Case) -> Found:
    """Return the oldest collective that members entered with different signatures, and all that differ at its lines."""
    left = [
        each
        for each in case.graph.mismatches
        if case.told.isdisjoint(r for side in each.sides for r in side) and held_by(case.found, each)
    ]
    if not left:
        return ()
    blocks: dict[Operation, list[Block]] = {}
    for block in (block for each in case.found.values() for block in each.blocks):
        blocks.setdefault(block.operation, []).append(block)
    left.sort(key=lambda each: -onset_s(blocks.get(each.operation, ())))
    lines = _lines_of(case, left[0])
    alike = [left[0], *(each for each in left[1:] if _lines_of(case, each) == lines)]
    found = [mismatch_roots(case, each) for each in alike[:ROOTS_ALIKE_MAX]]
    more = tuple(rank for each in alike[ROOTS_ALIKE_MAX:] for side in each.sides for rank in side)
    found[0] = (replace(found[0][0], others_alike=more), *found[0][1:])
    ways = max(map(len, found))  # in which the sides of one of them parted
    return tuple(tuple(each[way] for each in found if len(each) > way) for way in range(ways))


def _lines_of(case: Case, mismatch: Mismatch) -> frozenset[tuple[Op, CallSite | None]]:
    """Return what the sides of a mismatch call, and where."""
    return frozenset((side.op.op, side.site) for side in _sides_of(case, mismatch))


def mismatch_roots(case: Case, mismatch: Mismatch) -> tuple[MismatchRoot, ...]:
    """Return what is so where one collective was entered with different signatures, for each way in which it was."""
    operation, sides = mismatch.operation, _sides_of(case, mismatch)
    together: dict[tuple[object, ...], list[tuple[Parting, OneSided | None]]] = {}
    for found in partings(case.views, sides, operation):
        forward = one_sided_forward(case.views, found)
        own = found.shift is not None or found.slip is not None or forward is not None
        kin = (kin_of(found, in_forward=forward is not None), found.culprit if own else ())
        together.setdefault(kin, []).append((found, forward))
    odd = {rank for parted in together.values() for found, _ in parted for rank in found.culprit.ranks}
    return tuple(_mismatch_root(case, mismatch, (sides, odd), parted) for parted in together.values())


def _mismatch_root(
    case: Case,
    mismatch: Mismatch,
    entered: tuple[tuple[Side, ...], set[int]],
    parted: list[tuple[Parting, OneSided | None]],
) -> MismatchRoot:
    """Return what is so of the sides of a mismatch that parted from the others in one way.

    `entered` are all sides, and the ranks of those that have parted, in whatever way.
    """
    operation, (sides, odd) = mismatch.operation, entered
    first, forward = parted[0]
    blocks = [block for rank in case.blocked for block in case.found[rank].blocks]
    involved = [block for block in blocks if block.operation == operation] or blocks
    everyone = tuple(rank for side in sides for rank in side.ranks)
    through = _through(case, operation, everyone)
    doomed = case.graph.doomed
    ahead = {rank for rank in everyone if rank not in doomed and _is_elsewhere(case.found[rank], operation)}
    held = held_by(case.found, mismatch).union(doomed.intersection(everyone)) - ahead.union(through)
    may_go_on = set(everyone) - held.union(through)
    guilty = tuple(rank for found, _ in parted for rank in found.culprit.ranks) if first.decided else everyone
    stuck = {rank for rank in guilty if rank in doomed or case.found[rank].standing is Standing.GONE}
    # Where only a device is held up, its host may go on yet, and let others go on.
    fast = {rank for rank in held if rank in doomed or case.found[rank].standing is Standing.GONE}
    waiting = set(victims_of(case.graph, fast | stuck))
    return MismatchRoot(
        hangs=Certainty.PROVEN,
        ranks=guilty,
        decided=first.decided,
        victims=tuple(sorted(waiting.union(held) - odd.union(guilty, may_go_on))),
        blocks=tuple(involved),
        place=Place(operation.group, operation.seq, first.culprit.op.op.value),
        onset_s=onset_s(involved),
        operation=operation,
        sides=sides,
        partings=tuple(found for found, _ in parted),
        forward=forward,
        through=through,
    )


def _is_elsewhere(standing: RankStanding, operation: Operation) -> bool:
    """Say whether a rank has issued its part asynchronously, and is at work or waits for something else so far."""
    if standing.standing not in (Standing.OUTSIDE, Standing.BLOCKED):
        return False
    group = group_of(standing.view, operation.group)
    waits = (thread.wait for thread in standing.view.threads if thread.wait is not None)
    inside = any((wait.group, wait.seq) == (operation.group, operation.seq) for wait in waits)
    return not inside and group is not None and not group.asynchronous


def _through(case: Case, operation: Operation, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return who has come through its part of an operation: of a rooted one a member may need nobody else.

    Not those that have ended otherwise than with exit code 0: the operation may have ended with an error.
    """
    return tuple(
        rank
        for rank in ranks
        if is_through(case.found[rank], operation)
        and (case.found[rank].standing is not Standing.GONE or _has_left(case.views[rank].ending))
    )


def _has_left(ending: Ending | None) -> bool:
    return ending is not None and is_clean(ending)


def _sides_of(case: Case, mismatch: Mismatch) -> tuple[Side, ...]:
    group, seq = mismatch.operation.group, mismatch.operation.seq
    sides = []
    for ranks in mismatch.sides:
        op = next(op for rank in ranks if (op := find_issued(case.views[rank], group, seq)) is not None)
        blocks = (b for b in case.found[ranks[0]].blocks if (b.operation.group, b.operation.seq) == (group, seq))
        last = (each := group_of(case.views[ranks[0]], group)) is None or each.enqueued <= seq
        site = next((block.wait.site for block in blocks), None) if last else None  # else `work.wait()` is there
        sides.append(Side(ranks=ranks, op=op, site=op.site or site))
    return tuple(sides)


def find_gone(case: Case) -> Found:
    """Return the ranks that are gone while others need them, or that went with an error."""
    ends = find_ends(case)
    if ends is None:
        destroyed = left_a_group(case)
        return ((destroyed,),) if destroyed is not None else ()
    if isinstance(ends, Mismatch):
        return tuple((_as_it_ended(case, root),) for root in mismatch_roots(case, ends))
    victims = followers(case, ends.ranks)
    if ends.went is Went.LEFT and not victims:  # others may need them, and nobody does for certain
        return ()
    left = left_before(case, ends.ranks, victims) if ends.went is Went.LEFT else STAYED
    if left.alone:
        return () if case.told.issuperset(left.alone) else ((alone_root(case, ends.ranks, left, victims),),)
    keys = _keys_of(case, ends.ranks) if ends.went is Went.LEFT else ()
    waiters: tuple[int, ...] = ()
    senders: tuple[int, ...] = ()
    circle: Found = ()
    short: tuple[int, ...] = ()
    if left.counts is not None:
        short = ran_out_as_well(case.views, ends.ranks, case.blocked)
        victims = tuple(sorted({*victims, *victims_of(case.graph, short)} - {*ends.ranks, *short}))
    if ends.went is Went.LEFT and left == STAYED:  # nothing tells why
        waiters = tuple({block.rank for block in keys}) or _waiters(case, ends.ranks, victims)
        senders = tuple(set(victims) - set(waiters)) if keys else _other_senders(case, waiters, victims)
        circle, beside, wrong = _beside_the_gone(case)
        victims = tuple(rank for rank in victims if rank not in beside)
        if not victims or _may_be_in_a_circle(case, victims) or (waiters and wrong.issuperset(waiters)):
            return circle
        if circle and all(has_given_up(case.views[rank]) for rank in ends.ranks):  # an end that came of the circle
            return circle
    blocks = tuple(block for rank in victims for block in case.found[rank].blocks) if ends.went is Went.LEFT else ()
    ended_s = max(ended_s_ago(case.views[rank]) for rank in ends.ranks)
    root = GoneRoot(
        hangs=_how_certain(case, ends.ranks, keys, blocks),
        ranks=ends.ranks,
        decided=not senders
        and not (keys and (len(ends.ranks) > 1 or len({each.wait.site for each in keys}) > 1))
        and (not waiters or _are_most(case, waiters, _not_come(case, ends.ranks, waiters, victims))),
        victims=victims,
        blocks=blocks,
        place=place_of(blocks),
        onset_s=onset_s(blocks) or ended_s,
        ends=ends,
        counts=left.counts,
        short=short,
        shift=left.shift,
        waiters=tuple(sorted({*waiters, *senders})),
        of_keys=bool(keys),
    )
    return (*circle, (root,))


def _how_certain(case: Case, gone: tuple[int, ...], keys: Sequence[Block], blocks: tuple[Block, ...]) -> Certainty:
    """Return how certain it is that others wait for ranks that are gone for ever.

    Another process may set a key, and what a device counts as unfinished may be through.
    """
    if keys:
        return Certainty.STALLED if has_lasted(case.views, keys, BY_ONE_S) else Certainty.LATE
    return Certainty.STALLED if _are_behind_devices(case, gone, blocks) else Certainty.PROVEN


def _are_behind_devices(case: Case, gone: tuple[int, ...], blocks: tuple[Block, ...]) -> bool:
    """Say whether only devices tell that others wait, in what those that are gone have come to."""
    theirs = [block for block in blocks if not set(gone).isdisjoint(block.operation.members)]
    absent = (not set(gone).isdisjoint(case.graph.absent[block.operation]) for block in theirs)
    return bool(theirs) and all(block.on_device for block in theirs) and not any(absent)


def _are_most(case: Case, waiters: tuple[int, ...], not_come: tuple[int, ...]) -> bool:
    """Say whether those who wait are more than those who have not come, and are most of the group or wait as usual.

    Who waits elsewhere says nothing for either side.
    """
    if majority((waiters, not_come)) is not waiters or run_apart(case.views, waiters, not_come):
        return False
    blocks = [block for rank in waiters for block in case.graph.blocks.get(rank, ())]
    members = {rank for block in blocks for rank in block.operation.members}
    return 2 * len(waiters) > len(members) or any(_is_usual(case, block) for block in blocks)


def _is_usual(case: Case, block: Block) -> bool:
    """Say whether a rank has called from there in that group before."""
    group, seq = block.operation.group, block.operation.seq
    earlier = (op for op in case.views[block.rank].history if op.group == group and op.seq != seq)
    return any(op.site == block.wait.site for op in earlier)


def _as_it_ended(case: Case, root: MismatchRoot) -> MismatchRoot:
    """Return a mismatch that a backend ended ranks for; where all had come through it, the next call is what failed."""
    everyone = tuple(rank for side in root.sides for rank in side.ranks)
    then = replace(root.operation, seq=root.operation.seq + 1)
    if any(find_issued(case.views[rank], then.group, then.seq) is None for rank in everyone):
        return root
    return replace(root, hangs=Certainty.STALLED, through=everyone, then=then)


def _beside_the_gone(case: Case) -> tuple[Found, frozenset[int], frozenset[int]]:
    """Return a circle that would be there even if those that are gone had come, who is in it or behind, who closed it.

    It is told of by itself: that a rank has left may be as it should. Who closed such a circle, told or not, may have
    needed those that are gone only for the call that closed it.
    """
    graph = replace(case.graph, doomed=doomed_without_the_gone(case.graph, case.found))
    circle = find_circle(replace(case, graph=graph))
    inside = [rank for roots in circle for root in roots for rank in (*root.ranks, *root.victims)]
    any_circle = find_circle(replace(case, graph=graph, told=frozenset(), explained=frozenset()))
    closed = [rank for roots in any_circle for root in roots if root.decided for rank in root.ranks]
    return circle, frozenset(inside), frozenset(closed)


def _may_be_in_a_circle(case: Case, victims: tuple[int, ...]) -> bool:
    """Say whether others wait in an operation with members that are not known, which some of these may be."""
    others = (block.operation for rank, each in case.graph.blocks.items() if rank not in victims for block in each)
    return any(operation.unnamed and not set(victims) <= set(operation.members) for operation in others)


def _waiters(case: Case, gone: tuple[int, ...], victims: tuple[int, ...]) -> tuple[int, ...]:
    """Return who waits for ranks that have left in an operation with them, and who ended for the loss of one.

    Not who waits for a key of the store: others could have set that as well.
    """
    left, found = set(gone), []
    for rank in victims:
        operations = [block.operation for block in case.graph.blocks.get(rank, ())]
        certain = [each for each in operations if each.kind is not WaitKind.STORE]
        waits = any(not left.isdisjoint(case.graph.absent[each]) for each in certain)
        if waits or case.found[rank].standing is Standing.GONE:
            found.append(rank)
    return tuple(found)


def _other_senders(case: Case, waiters: tuple[int, ...], victims: tuple[int, ...]) -> tuple[int, ...]:
    """Return who could have sent what these receive from any rank, besides those that are gone, and waits elsewhere."""
    operations = {block.operation for rank in waiters for block in case.graph.blocks.get(rank, ())}
    anyone = [each for each in operations if each.kind is WaitKind.RECV and each.from_anyone]
    return tuple(sorted({rank for each in anyone for rank in case.graph.absent[each] if rank in victims}))


def _keys_of(case: Case, gone: tuple[int, ...]) -> tuple[Block, ...]:
    """Return the waits for keys of the store that these could have set, if others wait for them in nothing else."""
    waits = (block for each in case.graph.blocks.values() for block in each)
    missed = tuple(each for each in waits if not set(gone).isdisjoint(case.graph.absent[each.operation]))
    return missed if all(each.wait.kind is WaitKind.STORE for each in missed) else ()


def _not_come(case: Case, gone: tuple[int, ...], waiters: tuple[int, ...], victims: tuple[int, ...]) -> tuple[int, ...]:
    """Return those that are gone, and who else is not where the waiters are, though nothing holds it up."""
    operations = {block.operation for rank in waiters for block in case.graph.blocks.get(rank, ())}
    absent = {rank for each in operations for rank in case.graph.absent[each]}
    return (*gone, *sorted(absent.difference(gone, victims)))


def find_destroyed(case: Case) -> DestroyedRoot | AloneRoot | None:
    """Return the ranks that destroyed a group without coming to a collective in which its other members wait.

    What else these ranks have left belongs to it; what others left is a root of its own.
    """
    newest = {(rank, group.name): group.destroyed for rank, view in case.views.items() for group in view.groups}
    destroyed = frozenset(key for key, is_destroyed in newest.items() if is_destroyed)
    if not destroyed:
        return None
    left = [
        (block, leavers)
        for rank in case.unexplained
        for block in case.graph.blocks[rank]
        if block.operation.kind is WaitKind.COLLECTIVE and (leavers := _leavers(case, block, destroyed))
    ]
    if not left:
        return None
    group, first = left[0][0].operation.group, left[0][1]
    blocks = tuple(block for block, leavers in left if block.operation.group == group or leavers == first)
    ranks = tuple(sorted({rank for block in blocks for rank in _leavers(case, block, destroyed)}))
    victims = tuple(rank for rank in victims_of(case.graph, ranks) if rank not in ranks)
    why = left_before(case, ranks, victims)
    if why.alone:
        return alone_root(case, ranks, why, victims)
    if case.told and all(has_given_up(case.views[rank]) for rank in ranks):  # that came of what was told
        return None
    waiters = tuple(sorted({block.rank for block in blocks})) if why == STAYED else ()  # nothing tells why
    known = not waiters or _are_most(case, waiters, _not_come(case, ranks, waiters, victims))
    note = _test_of_its_own(case.views[ranks[0]], waiters) if not known and len(ranks) == 1 else None
    return DestroyedRoot(
        hangs=Certainty.PROVEN,
        ranks=ranks,
        decided=known or note is not None,
        victims=victims,
        blocks=blocks,
        place=place_of(blocks),
        onset_s=onset_s(blocks),
        counts=why.counts,
        waiters=waiters,
        note=note,
    )


def _test_of_its_own(view: RankView, waiters: tuple[int, ...]) -> SourceNote | None:
    """Return the test of the rank under which a rank waits since it destroyed a group, for those that wait in it.

    None if it waits under no such test, or for others than these: of a group of some ranks a test is in order.
    """
    thread = main_thread(view)
    wait = thread.wait if thread is not None else None
    if wait is None or wait.kind is WaitKind.INIT:
        return rank_condition(view, wait.site, "init_process_group") if wait is not None else None
    group = group_of(view, wait.group)
    if wait.kind is not WaitKind.COLLECTIVE or group is None or not set(waiters) <= set(group.ranks):
        return None
    return parting_condition(view, wait, wait.site)


def _leavers(case: Case, block: Block, destroyed: frozenset[tuple[int, str]]) -> tuple[int, ...]:
    """Return the members that have destroyed the group without coming to this operation, and still live.

    `destroyed`: of which ranks which groups are.
    """
    found = []
    for rank in case.graph.absent[block.operation]:
        standing = case.found[rank].standing
        stays = standing is Standing.BLOCKED or block.wait.age_s >= ABANDONED_S
        if (rank, block.operation.group) in destroyed and stays and standing is not Standing.GONE:
            found.append(rank)
    return tuple(found)


def find_circle(case: Case) -> Found:
    """Return a circle of ranks that wait for each other, with all at its lines."""
    circles, more = find_circles(case, ROOTS_ALIKE_MAX)
    found = []
    for circle in circles:
        first = next((block for block in circle.blocks if block.rank in circle.guilty), circle.blocks[0])
        found.append(
            CircleRoot(
                hangs=Certainty.LATE if circle.early else Certainty.STALLED if circle.likely else Certainty.PROVEN,
                ranks=circle.guilty,
                decided=circle.decided,
                victims=tuple(sorted({*victims_of(case.graph, circle.ranks), *circle.ranks} - set(circle.guilty))),
                blocks=circle.blocks,
                place=place_of((first,)),
                onset_s=onset_s(circle.blocks),
                others_alike=more,
                circle=circle,
            )
        )
    return (found,) if found else ()
