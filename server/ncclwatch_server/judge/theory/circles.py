"""Finds ranks that wait for each other in a circle, and what closed it: what they wait in, and who left a habit."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ncclwatch.contract.model.rank import CallSite, Op, OpView, RankView, SourceNote, WaitKind
from ncclwatch_server.judge.theory.case import Case
from ncclwatch_server.judge.theory.histories.batches import odd_in_pass, uneven_counts
from ncclwatch_server.judge.theory.histories.exceptions import Handled, astray
from ncclwatch_server.judge.theory.histories.free_threads import is_idle, may_come_back
from ncclwatch_server.judge.theory.histories.habits import Departure, departure, keeps_habit
from ncclwatch_server.judge.theory.histories.lines.call_sites import rank_condition
from ncclwatch_server.judge.theory.histories.odd_side import Side, Sign, odd_side, own_condition
from ncclwatch_server.judge.theory.histories.programs import run_apart
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift, find_shift, who_shifted
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.moments import has_lasted
from ncclwatch_server.judge.theory.waits.device_order import launches_in_vain
from ncclwatch_server.judge.theory.waits.proof import held_together, may_end
from ncclwatch_server.judge.theory.waits.rank_standing import Block, group_of, has_entered
from ncclwatch_server.judge.theory.waits.wait_graph import cycles, doomed_but_for, is_likely_only, waited_for

ORDER_S = 8.0  # streams of one device may run side by side; hardly for so long without any getting on
BY_ONE_S = 30.0  # another thread or process may let go of a lock, set a key, or make a call
HABIT_MIN = 3  # times two ranks have met before, that make their next meeting a habit
Ranks = tuple[int, ...]
_BY_ONE = (WaitKind.LOCK, WaitKind.STORE)  # waits that one rank ends, by what it does outside of operations
_MEETINGS = {WaitKind.INIT: "init_process_group", WaitKind.NEW_GROUP: "new_group"}  # by the names of the calls


class Closed(Enum):
    """What closed a circle, by the strongest thing that is known of it. One of these holds."""

    EXCEPTION = "exception"  # some came to their wait with an exception in hand
    THREAD = "thread"  # an exception ended the threads in which some made their calls of a group
    LOCK = "lock"  # some hold a file lock that others wait for
    KEY = "key"  # of the store, that nobody has set
    MEETING_MISSED = "meeting missed"  # most make a group or initialise, and few stay away
    MEETING_ALONE = "meeting alone"  # few make a group or initialise, and most are elsewhere
    SKIPPED_CALL = "skipped call"  # or one too many, in a group of the circle, before
    NEW_PAIR = "new pair"  # a send or recv that was never made before, among those that were made often
    WRONG_PEER = "wrong peer"  # one waits for a rank that waits for another one to meet it
    HABIT_LEFT = "habit left"  # by a minority, in a circle with a send or recv
    PAIRS = "pairs"  # of sends and receives, and no more is known
    BATCHES = "batches"  # one side drew fewer, and came to the end of them
    TEST_OF_RANK = "test of rank"  # round the call of one side
    ORDER = "order"  # of the groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """Ranks that wait for each other, and nobody in it for anybody else."""

    ranks: Ranks
    blocks: tuple[Block, ...]
    likely: bool  # only: something may still end it
    early: bool  # it may well be about to
    closed: Closed
    guilty: Ranks  # who closed it, everyone where that is not known
    decided: bool = True  # whether it is known to be all of these, rather than one of them
    strays: tuple[Handled, ...] = ()
    making: tuple[Block, ...] = ()  # the waits for a meeting
    waiters: Ranks = ()  # for a key
    note: SourceNote | None = None  # of the test of the rank
    shift: Shift | None = None
    first: Block | None = None  # the wait of the first of the guilty that tells
    met_before: int = 0  # how often the other pairs have met before
    meets: int = -1  # the rank that would meet the first of the guilty, where they address a wrong peer
    departure: Departure | None = None
    counts: Mapping[int, int] | None = None
    groups: bool = False  # whether it goes over several collectives
    sign: Sign = Sign.NONE  # by what the guilty side is known


def find_circles(case: Case, bound: int) -> tuple[tuple[Circle, ...], Ranks]:
    """Return a circle with others at its lines that are as certain, `bound` in all, and the ranks of more of them."""
    held = case.told | case.explained
    circles = (_without_bystanders(case, circle) for circle in cycles(case.graph, case.told))
    left = [circle for circle in circles if held.isdisjoint(circle) and _holds(case, circle)]
    if not left:
        return (), ()
    first = (_lines_of(case, left[0]), _is_likely(case, left[0]))
    alike = [circle for circle in left if (_lines_of(case, circle), _is_likely(case, circle)) == first]
    more = tuple(rank for circle in alike[bound:] for rank in circle)
    return tuple(_closed(case, circle) for circle in alike[:bound]), more


def _without_bystanders(case: Case, circle: Ranks) -> Ranks:
    """Return the circle that would be there if who waits for a lock or a key in it went on; all of it if none would."""
    bystanders = frozenset(
        rank for rank in circle if any(block.wait.kind in _BY_ONE for block in case.graph.blocks[rank])
    )
    if not bystanders:
        return circle
    inner = cycles(replace(case.graph, doomed=doomed_but_for(case.graph, case.found, bystanders)))
    return next((each for each in inner if set(each) <= set(circle)), circle)


def _blocks_of(case: Case, circle: Iterable[int]) -> list[Block]:
    """Return what the ranks of a circle wait in, but for what only their own devices keep from beginning."""
    blocks = (block for rank in circle for block in case.graph.blocks[rank])
    return [block for block in blocks if block.rank not in case.graph.behind[block.operation]]


def _lines_of(case: Case, circle: Iterable[int]) -> frozenset[tuple[WaitKind, Op, CallSite | None]]:
    return frozenset((block.wait.kind, block.wait.op, block.wait.site) for block in _blocks_of(case, circle))


def _holds(case: Case, circle: Iterable[int]) -> bool:
    """Say whether a circle was there at one instant, and for long enough if that it never ends is only likely."""
    blocks = _blocks_of(case, circle)
    long = not _is_likely(case, circle) or has_lasted(case.views, blocks, ORDER_S)
    return held_together(case.views, blocks) and long


def _is_likely(case: Case, circle: Iterable[int]) -> bool:
    blocks = _blocks_of(case, circle)
    return (
        is_likely_only(case.graph, circle)
        or _may_be_helped(case, blocks)
        or any(may_end(case.views, case.graph, block) for block in blocks)
        or _has_other_thread(case, blocks)
    )


def _may_be_helped(case: Case, blocks: Iterable[Block]) -> bool:
    """Say whether what nobody sees may end one of these waits.

    A key may be set from outside of the job, who took a lock may have left it to a thread or a child, and a thread that
    has issued nothing so far may be about to.
    """
    return any(block.wait.kind in _BY_ONE or case.views[block.rank].free_threads for block in blocks)


def _has_other_thread(case: Case, blocks: Iterable[Block]) -> bool:
    """Say whether a rank has another thread that meets other ranks, and works, or is in a call that ends by itself."""
    blocked = {(block.rank, block.thread.tid) for block in blocks}
    views = [case.views[rank] for rank in {rank for rank, _ in blocked}]
    return any(
        (may_come_back(thread) or (thread.issued and thread.alive and not thread.main and not is_idle(thread)))
        and (view.rank, thread.tid) not in blocked
        and not launches_in_vain(view, thread)
        for view in views
        for thread in view.threads
    )


def _closed(case: Case, ranks: Ranks) -> Circle:
    """Return a circle with what closed it."""
    blocks = _blocks_of(case, ranks)
    found = Circle(
        ranks=ranks,
        blocks=tuple(blocks),
        likely=_is_likely(case, ranks),
        closed=Closed.ORDER,
        guilty=tuple(sorted({block.rank for block in blocks})),
        early=_may_be_helped(case, blocks) and not has_lasted(case.views, blocks, BY_ONE_S),
    )
    known = _by_exception(case, found) or _by_thread(case, found) or _by_kind(case, found)
    known = known or _by_skipped_call(case, found)
    if known is not None:
        return known
    if any(block.wait.op.is_p2p for block in blocks):
        return _by_pairs(case, found)
    return _by_order(case, found)


def _by_exception(case: Case, found: Circle) -> Circle | None:
    strays = astray(case.views, found.guilty)
    if not strays:
        return None
    return replace(found, closed=Closed.EXCEPTION, guilty=tuple(each.rank for each in strays), strays=strays)


def _by_thread(case: Case, found: Circle) -> Circle | None:
    """Return who has lost the thread that made its calls in a group which others of the circle wait in."""
    guilty = tuple(rank for rank in found.guilty if _has_lost_a_thread(case, found, rank))
    return replace(found, closed=Closed.THREAD, guilty=guilty) if 0 < len(guilty) < len(found.guilty) else None


def _has_lost_a_thread(case: Case, found: Circle, rank: int) -> bool:
    view = case.views[rank]
    ended = view.ended_thread
    if ended is None:
        return False
    tids = {thread.tid for thread in view.threads if thread.name == ended.name and not thread.alive}
    missed = {block.operation.group for block in found.blocks if rank in case.graph.absent[block.operation]}
    newest = (next((op for op in reversed(view.history) if op.group == group), None) for group in missed)
    return any(op is not None and op.thread in tids for op in newest)


def _by_kind(case: Case, found: Circle) -> Circle | None:
    """Return what closed a circle where what its ranks wait in says it; None for one of collectives and messages."""
    locks = [block for block in found.blocks if block.wait.kind is WaitKind.LOCK]
    if locks:
        holders = tuple(sorted({block.operation.target for block in locks}))
        return replace(found, closed=Closed.LOCK, guilty=holders)
    keys = [block for block in found.blocks if block.wait.kind is WaitKind.STORE]
    if keys:
        return _by_keys(case, found, keys)
    making = tuple(block for block in found.blocks if block.wait.kind in _MEETINGS)
    return _by_meeting(case, found, making) if making else None


def _by_keys(case: Case, found: Circle, keys: list[Block]) -> Circle:
    """Return who should have set a key: the one that went on to a call which none of those who wait for it has made.

    They are most, and at one line, and it alone has set keys of that name before. Else nobody knows who should have set
    it, or whether it was set by another name.
    """
    waiters = tuple(sorted({block.rank for block in keys}))
    others = tuple(rank for rank in found.guilty if rank not in waiters)
    ahead = all(
        set(waiters) <= set(case.graph.absent[block.operation]) for block in found.blocks if block.rank in others
    )
    names = {(block.wait.site, block.wait.label) for block in keys}
    one = len(others) == 1 and len(names) == 1
    setters = {rank for rank, view in case.views.items() for _, name in names if name and name in view.keys_set}
    known = one and ahead and setters == set(others) and majority((waiters, others)) is waiters
    guilty = others if known else found.guilty
    return replace(found, closed=Closed.KEY, guilty=guilty, decided=known, waiters=waiters)


def _by_meeting(case: Case, found: Circle, making: tuple[Block, ...]) -> Circle:
    """Return who makes a group alone, or who stays away where most make one: all ranks of the job have to call it."""
    with_them, made = _with_the_others(case, found, making), _made(case, making)
    makers = tuple(sorted({*(block.rank for block in making), *with_them.intersection(made)}))
    others = tuple(sorted({*found.guilty, *with_them} - {*makers}))
    apart = run_apart(case.views, makers, others)
    together = len({(block.wait.kind, block.operation.members) for block in making}) == 1
    if not together or _came_after(case, found, others) or _has_gone_on(case, found, making):
        return replace(found, closed=Closed.MEETING_ALONE, making=making, decided=False)
    if others and majority((makers, others)) is makers and not apart:
        # The others of them wait for one of these.
        blocks = [each for each in found.blocks if not set(waited_for(case.graph, each)).isdisjoint(makers)]
        missed = {rank for block in making for rank in case.graph.absent[block.operation]}
        away = tuple(rank for rank in others if rank in missed and any(block.rank == rank for block in blocks))
        away = away or tuple(rank for rank in others if rank in missed) or others
        return replace(found, closed=Closed.MEETING_MISSED, guilty=away, making=making)
    first = making[0]
    note = rank_condition(case.views[makers[0]], first.wait.site, _MEETINGS[first.wait.kind])
    of_members = first.wait.members and (note is None or not first.wait.seq)
    if of_members or apart:  # of members alone, a test of the rank is in order
        return replace(found, closed=Closed.MEETING_ALONE, making=making, decided=False)
    return replace(found, closed=Closed.MEETING_ALONE, guilty=makers, making=making, note=note)


def _with_the_others(case: Case, found: Circle, making: tuple[Block, ...]) -> set[int]:
    """Return who is in a call with those that have not come to a group: who is no member need not wait for it.

    torch counts the groups that all ranks make, and gives each the next number: so it is known who has made one. Who is
    through with the call may have made the group afterwards, as the others would.
    """
    made = _made(case, making)
    calls = {
        block.operation for block in found.blocks if block.wait.kind is WaitKind.COLLECTIVE and block.rank not in made
    }
    known = ((rank, blocks) for rank, blocks in case.graph.blocks.items() if made and case.views[rank].groups_counted)
    return {rank for rank, blocks in known if any(b.operation in calls and not b.on_device for b in blocks)}


def _has_gone_on(case: Case, found: Circle, making: tuple[Block, ...]) -> bool:
    """Say whether some wait in a call before the group, and a member has made that without coming to the call.

    Either may be wrong, and those who wait in the call are not to blame for the group.
    """
    made = _made(case, making)
    before = [block for block in found.blocks if block not in making and block.rank not in made]
    return any(not made.isdisjoint(waited_for(case.graph, block)) for block in before)


def _made(case: Case, making: tuple[Block, ...]) -> set[int]:
    """Return who has been through the group that some make."""
    numbers = {block.wait.seq for block in making if block.wait.kind is WaitKind.NEW_GROUP}
    if len(numbers) != 1 or numbers == {0}:
        return set()
    return {rank for rank, view in case.views.items() if view.groups_counted > max(numbers)}


def _came_after(case: Case, found: Circle, others: Ranks) -> bool:
    """Say whether some came to a meeting after what others wait in: these may be in order."""
    met = [
        rank for rank, blocks in case.graph.blocks.items() if any(block.wait.kind in _MEETINGS for block in blocks)
    ]  # fmt: skip
    operations = {block.operation for block in found.blocks if block.rank in others}
    return any(has_entered(case.found[rank], operation) for operation in operations for rank in met)


def _by_skipped_call(case: Case, found: Circle) -> Circle | None:
    """Return who left a call out, or made one too many, in a group of the circle; None if all have kept in step.

    Equal calls pair silently, so a circle may close long after, and in other groups than the mistake was made in. A
    rank that is not in the circle has closed none, whatever it left out.
    """
    operations = {block.operation.group: block.operation for block in found.blocks if not block.wait.op.is_p2p}
    for group, operation in operations.items():
        shift = find_shift(case.views, group, operation.members)
        shifted = who_shifted(case.views, operation.members, shift) if shift is not None else None
        if shifted is not None and not set(found.ranks).isdisjoint(shifted.ranks):
            return replace(found, closed=Closed.SKIPPED_CALL, guilty=shifted.ranks, shift=shifted)
    return None


def _by_pairs(case: Case, found: Circle) -> Circle:
    """Return who addresses the wrong rank, if some rank that wants to meet it waits in vain, or who left its habit."""
    pairs = [block for block in found.blocks if block.wait.op.is_p2p]
    # Who waits for a rank to receive, while that one does receive, from another. To wait in line is no mistake.
    kinds = {block.rank: block.wait.kind for block in pairs}
    meets = {b.wait.peer: b.rank for b in pairs if kinds.get(b.wait.peer, b.wait.kind) is not b.wait.kind}
    misled = tuple(b.rank for b in pairs if b.rank in meets and meets[b.rank] != b.wait.peer)
    strange = _first_time(case, pairs)
    ranks = tuple(block.rank for block in strange)
    departed = _departed(case, found)
    # To be waited for on one side and to wait on the other is what a stage does: only who left its habit is misled.
    left = tuple(rank for rank in misled if departed is not None and rank in departed.guilty)
    if left and len(left) < len(pairs):
        first = next(block for block in pairs if block.rank == left[0])
        return replace(found, closed=Closed.WRONG_PEER, guilty=left, first=first, meets=meets[first.rank])
    if departed is not None:
        return replace(departed, closed=Closed.HABIT_LEFT)
    ends = {*ranks, *(block.wait.peer for block in strange)}
    others_as_ever = all(keeps_habit(case.views[rank]) for rank in found.guilty if rank not in ends)
    if strange and (set(ranks) <= set(misled) or others_as_ever):
        # Of what is new both ends may be wrong: one made it too early, or the other one left it out. Who wants to meet
        # one of them waits in line.
        return replace(_by_new_pair(found, pairs, strange), guilty=tuple(sorted(ends)), decided=False)
    # Ranks that all do the same are all to be asked; of different waits nothing tells which one is wrong. Nor does it
    # where one of them has been through the same before: the exchange was in order, and somebody left it this time.
    alike = len({(block.wait.op, block.wait.site) for block in found.blocks}) == 1
    slipped = any(_made_before(case, block) for block in found.blocks)
    return replace(found, closed=Closed.PAIRS, decided=alike and not slipped)


def _by_new_pair(found: Circle, pairs: list[Block], strange: list[Block]) -> Circle:
    met_before = min(block.wait.seq for block in pairs if block not in strange) - 1
    return replace(found, closed=Closed.NEW_PAIR, first=strange[0], met_before=met_before)


def _first_time(case: Case, pairs: list[Block]) -> list[Block]:
    """Return the waits of a circle for a rank that was never met before, if the others have been through many times.

    The first backward of a pipeline receives for the first time from a rank to which it has sent before. A rank that is
    in a collective instead may have left the pipeline, or have not come to it.
    """
    sending = {block.rank for block in pairs}
    strange = [
        block
        for block in pairs
        if block.wait.seq <= 1 and block.wait.peer in sending and not _have_met(case, block.rank, block.wait.peer)
    ]
    settled = all(block.wait.seq > HABIT_MIN for block in pairs if block not in strange)
    return strange if strange and settled and len(strange) < len(pairs) else []


def _have_met(case: Case, rank: int, peer: int) -> bool:
    """Say whether a rank has sent anything to another one, or received from it, apart from what it waits in now."""
    return sum(each.sends + each.recvs for each in case.views[rank].peers if each.peer == peer) > 1


def _made_before(case: Case, block: Block) -> bool:
    """Say whether a rank has been through the message that it waits in before, at that line and with that rank."""
    wait = block.wait
    return any(
        op.completed and (op.op, op.peer, op.site) == (wait.op, wait.peer, wait.site)
        for op in case.views[block.rank].history
    )


def _departed(case: Case, found: Circle) -> Circle | None:
    """Return who of a circle broke what it repeated, where all others are seen to keep to what they repeat.

    That few do something new tells only where most do not.
    """
    views = {rank: case.views[rank] for rank in found.guilty}
    places: dict[int, set[tuple[Op, CallSite | None]]] = {}
    for block in found.blocks:
        places.setdefault(block.rank, set()).add((block.wait.op, block.wait.site))
    for new in (False, True):
        left = {}
        for rank, view in views.items():  # who stands where it does is no witness against that
            others = [other for at, other in case.views.items() if at != rank and places.get(at) != places[rank]]
            departed = departure(view, others, new=new)
            if departed is not None:
                left[rank] = departed
        if len({(each.op.op, each.op.site) for each in left.values()}) > 1:
            continue  # one of them may have had to, as the other one held it up or left it
        kept = tuple(rank for rank in views if rank not in left)
        # Of a new call only those keep away who would have to make it.
        groups = {departed.op.group for departed in left.values()}
        blocks = [block for block in found.blocks if block.rank in left and block.operation.group in groups]
        needed = {member for block in blocks for member in block.operation.members}
        # Who waits in a call of theirs outside of the circle, and came to it as they did, did the same.
        calls = {block.operation for block in blocks}
        beside = (rank for rank, own in case.graph.blocks.items() if not calls.isdisjoint(b.operation for b in own))
        gone = (*left, *(r for r in beside if r not in views and departure(case.views[r], new=new) is not None))
        most = majority((gone, tuple(rank for rank in kept if rank in needed) if new else kept))
        if not left or most == gone or (new and most is None):
            continue  # nobody did, or most, and the others may have stayed away
        if all(keeps_habit(views[rank]) for rank in kept):
            return replace(found, guilty=tuple(left), departure=next(iter(left.values())))
    return None


def _by_order(case: Case, found: Circle) -> Circle:
    """Return which side of a circle of collectives is the odd one."""
    sides = _sides_of(found.blocks)
    if len(sides) < 2:
        return found
    found = replace(found, groups=True)
    # Who has to make the calls of all sides, and has not come to any yet, may still come to either.
    both = set.intersection(*(set(each.members) for each in {block.operation for block in found.blocks}))
    sides = _by_first_call(case, sides, both) or sides
    odd = odd_side(case.views, sides, None, len(both))
    side, others = odd.side, [other for other in sides if other is not odd.side]
    if any(uneven_counts(case.views, side.ranks, other.ranks) is not None for other in others):
        return _by_batches(case, found, sides)
    for each in (side, *others):
        note = own_condition(case.views, each, tuple(other for other in sides if other is not each))
        if note is not None and not note.branch_ops[1:]:
            return replace(found, closed=Closed.TEST_OF_RANK, guilty=each.ranks, note=note)
    if odd.sign in (Sign.DEPARTS, Sign.MINORITY):
        guilty = tuple(rank for rank in side.ranks if rank in found.guilty)
        return replace(found, guilty=guilty, sign=odd.sign)
    return _departed(case, found) or replace(found, decided=False)


def _by_first_call(case: Case, sides: tuple[Side, ...], both: set[int]) -> tuple[Side, ...]:
    """Return two sides by which of their calls ranks made first, of those that have to make both; () if one is empty.

    Who is in one of the groups only says nothing about the order. On a device most have made both calls by now.
    """
    if len(sides) != 2:
        return ()
    first: tuple[list[int], list[int]] = ([], [])
    for rank in sorted(both.intersection(case.views)):
        made = [_place_of(case.views[rank], side.op) for side in sides]
        if made[0] != made[1]:
            first[made[1] < made[0]].append(rank)
    if not all(first):
        return ()
    return tuple(replace(side, ranks=tuple(ranks)) for side, ranks in zip(sides, first, strict=True))


def _place_of(view: RankView, call: OpView) -> int:
    """Return where in its history a rank has a call of a group; before all of it what it has forgotten, else behind."""
    for n, op in enumerate(view.history):
        if (op.group, op.seq) == (call.group, call.seq):
            return n if op.op is call.op else len(view.history)  # else it has made another call in its place
    group = group_of(view, call.group)
    return -1 if group is not None and group.enqueued >= call.seq else len(view.history)


def _by_batches(case: Case, found: Circle, sides: tuple[Side, ...]) -> Circle:
    """Return a circle as closed by its sides that ran out of batches, or by the others, where most ranks ran out."""
    counts: dict[int, int] = {}
    short: list[int] = []
    for side in sides:
        uneven = [uneven_counts(case.views, side.ranks, other.ranks) for other in sides if other is not side]
        for each in filter(None, uneven):
            counts |= each
        short += side.ranks if any(each is not None for each in uneven) else ()
    guilty = tuple(sorted(short))
    long = tuple(sorted({rank for side in sides for rank in side.ranks} - set(short)))
    odd = odd_in_pass(case.views, guilty, long) if long else guilty
    decided = odd in (guilty, long)
    return replace(found, closed=Closed.BATCHES, guilty=odd, decided=decided, counts=dict(sorted(counts.items())))


def _sides_of(blocks: Iterable[Block]) -> tuple[Side, ...]:
    by_operation: dict[tuple[str, int, int, int], list[Block]] = {}
    for block in blocks:
        operation = block.operation
        key = (operation.group, operation.seq, operation.source, operation.target)
        by_operation.setdefault(key, []).append(block)
    sides = []
    for found in by_operation.values():
        issued = next((block.issued for block in found if block.issued is not None), None)
        if issued is not None:
            ranks = tuple(sorted({block.rank for block in found}))
            sides.append(Side(ranks=ranks, op=issued, site=found[0].wait.site or issued.site))
    return tuple(sides)
