"""Finds how the sides of a hang parted: which side is the odd one, and the strongest thing that is known of the way."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ncclwatch.contract.model.rank import CallSite, Op, OpView, RankView, SourceNote
from ncclwatch.contract.ring.call_sites import is_gradient_bucket
from ncclwatch_server.judge.theory.histories.batches import uneven_counts
from ncclwatch_server.judge.theory.histories.exceptions import Handled, astray
from ncclwatch_server.judge.theory.histories.habits import (
    Slip,
    find_slip,
    made_before,
    never_called_there,
    parted_in_a_loop,
)
from ncclwatch_server.judge.theory.histories.lines.call_sites import (
    LeftLoop,
    group_condition,
    is_of_join,
    left_by_rank,
    loop_left,
    parting_condition,
    route_of,
    ways_past,
)
from ncclwatch_server.judge.theory.histories.odd_side import Side, Sign, Views, condition_of, departed_at, odd_side
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift, find_shift
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.waits.rank_standing import Operation, find_issued


class Way(Enum):
    """How sides parted, by the strongest thing that is known of it. One of these holds, and no other."""

    EXCEPTION = "exception"  # one side is handling an exception, of which the others know nothing
    JOINED = "joined"  # one side is out of batches, and Join makes calls for it: not that of the others
    THREADS = "threads"  # two threads of each rank use one group
    SHIFT = "shift"  # a call was skipped or made too often, before the hang
    SLIP = "slip"  # a clock of progress differs since an operation before the hang
    BATCHES = "batches"  # one side drew fewer batches, and came to the end of them
    ARGUMENTS = "arguments"  # the same call with other arguments
    TEST_OF_RANK = "test of rank"  # the call of one side lies under such a test
    FUNCTION_LEFT = "function left"  # at a test of the rank
    BACKWARD_LEFT = "backward left"  # one side went on while the other reduces gradients, after as many forwards
    LOOP_ENDED = "loop ended"  # of itself, after fewer turns than on the other side
    LOOP_LEFT = "loop left"
    UNKNOWN = "unknown"


# Where nothing closer is known than that a side went another way.
_ANOTHER_WAY = frozenset(
    (Way.SHIFT, Way.SLIP, Way.FUNCTION_LEFT, Way.BACKWARD_LEFT, Way.LOOP_ENDED, Way.LOOP_LEFT, Way.UNKNOWN)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """How two or more sides of a hang parted."""

    way: Way
    culprit: Side
    others: tuple[Side, ...]
    sign: Sign  # by what the culprit is known
    decided: bool = True  # whether it is known to be this side
    slip: Slip | None = None
    shift: Shift | None = None
    condition: str = ""  # the test of the rank round the culprit's call, or round the others'
    condition_on_others: bool = False
    counts: Mapping[int, int] | None = None  # batches drawn by rank, where they differ
    loop: str = ""
    escapes: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()  # whose operations of one group cross
    handled: Handled | None = None  # the exception that the culprit is handling
    way_out: str = ""  # the test of the rank by which the culprit left a function
    forwards: int = 0  # that both sides have run, where one of them did not finish the last backward

    @property
    def sides(self) -> tuple[Side, ...]:
        """All sides, the culprit first."""
        return (self.culprit, *self.others)

    @property
    def largest_other(self) -> Side:
        """The largest of the other sides."""
        return largest(self.others)


def largest(sides: tuple[Side, ...]) -> Side:
    """Return the side of the most ranks."""
    return max(sides, key=lambda side: len(side.ranks))


def kin_of(found: Parting, *, in_forward: bool) -> Way:
    """Return with what other ways a parting is told together, as one of them."""
    if found.condition:
        return Way.TEST_OF_RANK
    if found.way is Way.LOOP_ENDED and not in_forward:  # a loop inside of a forward is none over data
        return Way.BATCHES
    return Way.UNKNOWN if found.way in _ANOTHER_WAY else found.way


def part(views: Views, sides: tuple[Side, ...], operation: Operation) -> Parting:
    """Return how the sides, at least two, parted in an operation."""
    found = _by_exception(views, sides) or _by_join(views, sides) or _by_threads(views, sides)
    if found is not None:
        return found
    group, first = sides[0].op.group, min(side.op.seq for side in sides)
    slip = find_slip(views, group, operation.members, first)
    shift = find_shift(views, group, operation.members)
    shifted = _shifted(views, sides, shift) if shift is not None else None
    # Where a clock of progress slipped it tells best what was skipped; a call too many is told best by its own line.
    if shift is not None and shifted is not None and (slip is None or shift.seen_from(shifted.ranks).skipped < 0):
        found = _by_shift(views, sides, shifted, shift)
        threads = _threads_of(views, found)
        return _of_threads(sides, threads) if threads else found
    odd = odd_side(views, sides, slip, operation.size)
    found = _either_shifted(sides, shift) if shift is not None and not odd.decided else None
    if found is not None:
        return found
    return _last_call(views, odd.side, _without(sides, odd.side), odd.sign, slip)


def partings(views: Views, sides: tuple[Side, ...], operation: Operation) -> tuple[Parting, ...]:
    """Return how sides parted: of three or more, each of those that have departed from one, if that can be told.

    They have departed from the majority of all or, without one, from the side against which the evidence decides for
    each of the others, whatever their numbers.
    """
    if len(sides) < 3:
        return (part(views, sides, operation),)
    most = majority([side.ranks for side in sides])
    if most is not None:
        usual = next(side for side in sides if side.ranks is most)
        return tuple(part(views, (side, usual), operation) for side in sides if side is not usual)
    for usual in sorted(sides, key=lambda side: -len(side.ranks)):
        one = replace(usual, ranks=usual.ranks[:1])
        others = _without(sides, usual)
        found = [part(views, (replace(side, ranks=side.ranks[:1]), one), operation) for side in others]
        if all(each.decided and each.culprit.ranks != one.ranks for each in found):
            return tuple(replace(each, culprit=side, others=(usual,)) for each, side in zip(found, others, strict=True))
    return (part(views, sides, operation),)


def _without(sides: tuple[Side, ...], one: Side) -> tuple[Side, ...]:
    return tuple(side for side in sides if side is not one)


def _by_exception(views: Views, sides: tuple[Side, ...]) -> Parting | None:
    strays = {each.rank: each for each in astray(views, (rank for side in sides for rank in side.ranks))}
    strayed = [side for side in sides if set(side.ranks) & set(strays)]
    if len(strayed) != 1:
        return None
    (culprit,) = strayed
    return Parting(
        way=Way.EXCEPTION,
        culprit=culprit,
        others=_without(sides, culprit),
        sign=Sign.EXCEPTION,
        handled=next(strays[rank] for rank in culprit.ranks if rank in strays),
    )


def _by_join(views: Views, sides: tuple[Side, ...]) -> Parting | None:
    """Return the parting of ranks that have run out of inputs from those that call what Join does not call for them.

    Where a side is in a call of Join and one of the program as well, Join is in step, and something else is wrong.
    """
    others = tuple(side for side in sides if all(_is_joined(views[rank], side) for rank in side.ranks))
    own = tuple(side for side in sides if side not in others)
    if not others or len(own) != 1 or _may_be_of_join(views, own[0], others):
        return None
    return Parting(way=Way.JOINED, culprit=own[0], others=others, sign=Sign.NOT_JOINED)


def _is_joined(view: RankView, side: Side) -> bool:
    """Say whether Join makes the call of a side for one of its ranks."""
    op = find_issued(view, side.op.group, side.op.seq)
    return is_of_join(view, op.site if op is not None else side.site)


def _may_be_of_join(views: Views, own: Side, others: tuple[Side, ...]) -> bool:
    """Say whether Join may make the call of a side: a bucket of gradients, or what it has made for another one."""
    if is_gradient_bucket(own.op.label):
        return True
    made = (op for side in others for op in views[side.ranks[0]].history if is_of_join(views[side.ranks[0]], op.site))
    return any((op.op, op.numel) == (own.op.op, own.op.numel) for op in made)


def _by_threads(views: Views, sides: tuple[Side, ...]) -> Parting | None:
    threads = crossing_threads(views, sides)
    if not threads:
        return None
    return _of_threads(sides, threads)


def _of_threads(sides: tuple[Side, ...], threads: tuple[str, ...]) -> Parting:
    culprit = min(sides, key=lambda side: len(side.ranks))
    return Parting(
        way=Way.THREADS,
        culprit=culprit,
        others=_without(sides, culprit),
        sign=Sign.THREADS,
        decided=False,
        threads=threads,
    )


def crossing_threads(views: Views, sides: tuple[Side, ...]) -> tuple[str, ...]:
    """Return the names of the threads that use one group at a time of their own, () if no two threads do.

    Autograd's threads issue for a main thread that stands in backward; they have no name in Python.
    """
    names = []
    for side in sides:
        view = views[side.ranks[0]]
        known = _names_of(view)
        users = {op.thread for op in view.history if op.group == side.op.group and op.thread in known}
        if len(users) < 2 or side.op.thread not in known:
            return ()
        names.append(known[side.op.thread])
    return tuple(names) if len(set(names)) > 1 else ()


def _names_of(view: RankView) -> dict[int, str]:
    return {thread.tid: thread.name for thread in view.threads if thread.name and thread.name[:5] != "Dummy"}


def _threads_of(views: Views, found: Parting) -> tuple[str, ...]:
    """Return the names of two threads of a rank of which one made the calls of a shift and the other those round it.

    The other ranks may make them yet: nothing orders them against those of the other thread. () if it was one thread.
    """
    if found.shift is None or found.condition:
        return ()
    maker = found.culprit if found.shift.skipped < 0 else found.largest_other
    view = views[maker.ranks[0]]
    known = _names_of(view)
    own = known.get(found.shift.op.thread)
    others = [known.get(op.thread) for op in view.history if op.group == found.shift.group]
    other = next((name for name in reversed(others) if name is not None and name != own), None)
    return (other, own) if own is not None and other is not None else ()


def _shifted(views: Views, sides: tuple[Side, ...], shift: Shift) -> Side | None:
    """Return the side that skipped or added a call before the hang, None if nobody can tell."""
    if shift.decided:
        chosen = [side for side in sides if set(side.ranks) & set(shift.ranks)]
        return chosen[0] if len(chosen) == 1 and set(chosen[0].ranks) <= set(shift.ranks) else None
    chosen = [side for side in sides if departed_at(views, side, shift.group, shift.seq)]
    if len(chosen) != 1:  # the habit does not tell: a call that a test keeps the other side from is one too many
        chosen = [
            side
            for side in sides
            if shift.seen_from(side.ranks).skipped < 0
            and _is_parted_by_test(views, side, shift)
            and _lonely(views, side, shift.op, shift.route)
        ]
    return chosen[0] if len(chosen) == 1 else None


def _lonely(views: Views, side: Side, op: OpView, route: tuple[CallSite, ...]) -> bool:
    """Say whether no rank outside this side ever made a call."""
    return all(never_called_there(view, op, route) for rank, view in views.items() if rank not in side.ranks)


def _is_parted_by_test(views: Views, side: Side, shift: Shift) -> bool:
    """Say whether only some of the group make the call of a shift, by a test of the rank."""
    return parting_condition(views[side.ranks[0]], shift.op, shift.op.site, shift.route) is not None


def _test_round(views: Views, side: Side, shift: Shift) -> SourceNote | None:
    """Return the test of the rank round the call of a shift, as seen on a side."""
    return group_condition(views[side.ranks[0]], shift.op, shift.op.site, shift.route)


def _by_shift(views: Views, sides: tuple[Side, ...], culprit: Side, shift: Shift) -> Parting:
    own = shift.seen_from(culprit.ranks)
    others = _without(sides, culprit)
    callers = culprit if own.skipped < 0 else others[0]
    note = _test_round(views, callers, own)
    return Parting(
        way=Way.SHIFT,
        culprit=culprit,
        others=others,
        sign=Sign.SKIPPED if own.skipped > 0 else Sign.MADE_MORE,
        shift=own,
        condition=note.condition if note is not None else "",
        condition_on_others=callers is not culprit,
    )


def _either_shifted(sides: tuple[Side, ...], shift: Shift) -> Parting | None:
    """Return that one of two sides made a call too many, or the other left it out; None: the shift is not theirs."""
    makers = [side for side in sides if shift.seen_from(side.ranks).skipped < 0]
    if shift.decided or len(sides) > 2 or len(makers) != 1:
        return None
    return Parting(
        way=Way.SHIFT,
        culprit=makers[0],
        others=_without(sides, makers[0]),
        sign=Sign.NONE,
        decided=False,
        shift=shift.seen_from(makers[0].ranks),
    )


def _last_call(views: Views, culprit: Side, others: tuple[Side, ...], sign: Sign, slip: Slip | None) -> Parting:
    """Return how sides parted at the very calls that they hang in, the odd one being known."""
    decided = sign is not Sign.NONE and not (sign is Sign.DEPARTS and _is_new_in_files(views, culprit, others))
    found = Parting(way=Way.UNKNOWN, culprit=culprit, others=others, sign=sign, decided=decided)
    other = found.largest_other
    mine, theirs = views[culprit.ranks[0]], views[other.ranks[0]]
    # A slip says that somebody skipped or repeated work; more batches on one rank say so by themselves.
    if slip is not None:
        return replace(found, way=Way.SLIP, slip=slip, escapes=ways_past(theirs, other.site))
    counts = uneven_counts(views, culprit.ranks, other.ranks) or uneven_counts(views, other.ranks, culprit.ranks)
    if counts is not None:
        return replace(found, way=Way.BATCHES, counts=counts)
    if _same_call(views, culprit, other) and not (made_before(mine, culprit.op) and made_before(theirs, other.op)):
        return replace(found, way=Way.ARGUMENTS)
    for side in (culprit, other):
        note = condition_of(views, side)
        if note is not None:
            on_others = side is not culprit
            return replace(found, way=Way.TEST_OF_RANK, condition=note.condition, condition_on_others=on_others)
    way_out = left_by_rank(theirs, other.site, mine, culprit.site)
    if way_out:
        return replace(found, way=Way.FUNCTION_LEFT, way_out=way_out)
    if _has_less_to_reduce(culprit, other):
        return replace(found, way=Way.BACKWARD_LEFT, forwards=culprit.op.forwards)
    for leaver, stayer in ((culprit, other), (other, culprit)):
        left = loop_left(views[stayer.ranks[0]], stayer.site, views[leaver.ranks[0]], leaver.site)
        if left is not None:
            # Where the others have left it, the odd side may be in it for another time.
            ended = leaver is culprit and _has_ended(views, left, leaver, stayer)
            way = Way.LOOP_ENDED if ended else Way.LOOP_LEFT
            return replace(found, way=way, loop=left.head, escapes=left.ways_out)
    return found


def _is_new_in_files(views: Views, culprit: Side, others: tuple[Side, ...]) -> bool:
    """Say whether files show a call of the odd side that it has never made before.

    It may make that call alone, or the others left out what comes once in many iterations: only the source tells, and
    no file has it.
    """
    from_files = all(views[side.ranks[0]].file is not None for side in (culprit, *others))
    return from_files and not made_before(views[culprit.ranks[0]], culprit.op)


def _has_less_to_reduce(culprit: Side, other: Side) -> bool:
    """Say whether one side went on from a backward in which the other still reduces a gradient bucket."""
    same_forwards = culprit.op.forwards == other.op.forwards > 0
    return same_forwards and is_gradient_bucket(other.op.label) and not is_gradient_bucket(culprit.op.label)


def _has_ended(views: Views, left: LeftLoop, leaver: Side, stayer: Side) -> bool:
    """Say whether a loop ended of itself for who left it, after fewer turns than its calls took on the other side."""
    counted = leaver.op.forwards and stayer.op.forwards
    has_done_less = not counted or leaver.op.forwards < stayer.op.forwards
    gone, there = views[leaver.ranks[0]], views[stayer.ranks[0]]
    return left.ends_by_itself and has_done_less and parted_in_a_loop(gone, there, stayer.op)


def _same_call(views: Views, one: Side, other: Side) -> bool:
    """Say whether both sides made the same call: the same kind of operation, from one line that was reached one way."""
    same_op = one.op.op is other.op.op
    same_line = one.op.site == other.op.site or one.site == other.site
    return same_op and one.op.op is not Op.BARRIER and same_line and not parted_callers(views, one, other)


def parted_callers(views: Mapping[int, RankView], one: Side, other: Side) -> tuple[CallSite, CallSite] | None:
    """Return the callers' lines at which two sides in one line differ; None: in two lines, or by the same callers."""
    mine, theirs = (route_of(views[side.ranks[0]], side.op) for side in (one, other))
    if not mine or not theirs or mine[0] != theirs[0]:
        return None
    return next(((a, b) for a, b in zip(mine, theirs, strict=False) if a != b), None)
