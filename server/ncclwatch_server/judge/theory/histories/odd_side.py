"""Finds which of several sides of a hang is the odd one, and by what it is known.

Order of the signs, each decisive only where the ones before are not: who differs from the majority
of like ranks; who departs from its own habit; whose call lies under a test of the rank; who left a
loop before the others.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from ncclwatch.contract.model.rank import CallSite, OpView, RankView, SourceNote
from ncclwatch.contract.ring.call_sites import is_gradient_bucket
from ncclwatch_server.judge.theory.histories.batches import drew_few, uneven_counts
from ncclwatch_server.judge.theory.histories.exceptions import have_caught_apart
from ncclwatch_server.judge.theory.histories.habits import (
    Slip,
    departs_by_key,
    departs_from_habit,
    departs_in_arguments,
    jumped,
    never_called_there,
    outgrows,
)
from ncclwatch_server.judge.theory.histories.lines.call_sites import (
    group_condition,
    is_way_out,
    left_by_rank,
    loop_left,
    parting_condition,
    rank_condition,
    route_of,
)
from ncclwatch_server.judge.theory.histories.programs import run_apart, share_a_group
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.waits.rank_standing import find_issued


class Sign(Enum):
    """By what the odd side is known."""

    EXCEPTION = "exception"  # it came there with an exception in hand
    NOT_JOINED = "not joined"  # it calls what Join does not call for the others, which have run out of inputs
    THREADS = "threads"  # none is odd: two threads of each rank take turns differently
    SKIPPED = "skipped"  # a call that the others made
    MADE_MORE = "made more"  # a call that the others did not make
    SLIPPED_FIRST = "slipped first"
    DEPARTED_FIRST = "departed first"  # from its own earlier iterations, where the sides fell out of step
    MINORITY = "minority"
    LEFT_AT_TEST = "left at test"  # a function or a loop, at a test of the rank
    DEPARTS = "departs"  # from its own earlier iterations
    ARGUMENTS = "arguments"  # not those of its own earlier calls at that line
    BACKWARD_LEFT = "backward left"  # of its last forward, which the others are in
    LEFT_LOADER = "left loader"  # that the others still draw from
    TEST_OF_RANK = "test of rank"  # round its call
    LEFT_LOOP = "left loop"  # that the others are still in
    NONE = "none"  # the evidence does not decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Ranks that stand in the same operation."""

    ranks: tuple[int, ...]
    op: OpView
    site: CallSite | None  # where the first of them waits


@dataclass(frozen=True, slots=True, kw_only=True)
class OddSide:
    """The side that differs, and by what that is known."""

    side: Side
    sign: Sign

    @property
    def decided(self) -> bool:
        """Whether anything says that it is this side."""
        return self.sign is not Sign.NONE


Views = Mapping[int, RankView]
BACKWARDS_MIN = 3  # that have reduced alike, before one that reduces less tells
_Others = tuple[Side, ...]


def odd_side(views: Views, sides: tuple[Side, ...], slip: Slip | None, size: int = 0) -> OddSide:
    """Return the odd one of at least two sides; the smallest, by no sign, where nothing tells.

    `size`: members of the group of the sides. Some may not have come yet, have forgotten with whom they went, or be
    unknown.
    """
    slipped = _first_to_slip(views, sides, slip) if slip is not None else None
    if slipped is not None:
        return slipped
    usual = majority([side.ranks for side in sides])
    if usual is not None and len(usual) * 2 > size and len(sides) == 2:
        (few,) = (side for side in sides if side.ranks is not usual)
        many = next(side for side in sides if side is not few)
        if not _go_apart(views, many, few):
            if drew_few(views, usual, few.ranks):  # most of the group, and few of the job
                return OddSide(side=many, sign=Sign.LEFT_LOADER)
            if have_caught_apart(views, usual, few.ranks):  # most may have left out what they failed in
                return _none(sides)
            return OddSide(side=few, sign=Sign.MINORITY)
    if slip is not None and not slip.decided:
        return _none(sides)  # where they are now only follows from where they fell out of step
    for sign, shows in _SIGNS:
        chosen = [side for side in sides if shows(views, side, tuple(s for s in sides if s is not side))]
        if len(chosen) == 1:
            return OddSide(side=chosen[0], sign=sign)
    return _none(sides)


def _none(sides: tuple[Side, ...]) -> OddSide:
    return OddSide(side=min(sides, key=lambda side: len(side.ranks)), sign=Sign.NONE)


def _go_apart(views: Views, many: Side, few: Side) -> bool:
    """Say whether two sides run different programs, or the larger one is at something that the other never does."""
    first = views[many.ranks[0]]
    own = share_a_group(views, many.ranks, few.ranks) and all(
        never_called_there(views[rank], many.op, route_of(first, many.op)) for rank in few.ranks
    )
    return own or run_apart(views, many.ranks, few.ranks)


def _first_to_slip(views: Views, sides: tuple[Side, ...], slip: Slip) -> OddSide | None:
    """Return the side that fell out of step before the hang, None if that does not tell."""
    if slip.decided:
        slipped = [side for side in sides if set(side.ranks) & set(slip.ranks)]
        if len(slipped) == 1 and set(slipped[0].ranks) <= set(slip.ranks):
            return OddSide(side=slipped[0], sign=Sign.SLIPPED_FIRST)
        return None
    departed = [side for side in sides if departed_at(views, side, slip.group, slip.seq)]
    if len(departed) == 1:
        return OddSide(side=departed[0], sign=Sign.DEPARTED_FIRST)
    jumps = {side: jumped(views[side.ranks[0]], slip) for side in sides}
    odd = [side for side, each in jumps.items() if each]
    return OddSide(side=odd[0], sign=Sign.SLIPPED_FIRST) if len(odd) == 1 and None not in jumps.values() else None


def departed_at(views: Views, side: Side, group: str, seq: int) -> bool:
    """Say whether a side broke its own habit at an operation."""
    op = find_issued(views[side.ranks[0]], group, seq)
    return op is not None and departs_from_habit(views[side.ranks[0]], op, _besides(views, side)) is True


def _besides(views: Views, side: Side) -> list[RankView]:
    """Return who may tell that a side has departed: nobody, where a test of the rank may keep all of them away."""
    view = views[side.ranks[0]]
    if rank_condition(view, side.site, side.op.op.value, route_of(view, side.op)) is not None:
        return []
    return [view for rank, view in views.items() if rank not in side.ranks]


def condition_of(views: Views, side: Side) -> SourceNote | None:
    """Return the test of the rank under which a side made its call, None if there is none that parts its group."""
    view = views[side.ranks[0]]
    return group_condition(view, side.op, side.site, route_of(view, side.op))


def own_condition(views: Views, side: Side, others: _Others) -> SourceNote | None:
    """Return the test of the rank under which a side made its call, if that has always kept the others from it.

    A test that parts the programs of a job is round all that one of them does.
    """
    view = views[side.ranks[0]]
    note = parting_condition(view, side.op, side.site, route_of(view, side.op))
    if note is None:
        return None
    route = route_of(views[side.ranks[0]], side.op)
    them = [rank for other in others for rank in other.ranks]
    made = (not never_called_there(views[rank], side.op, route) for rank in them)
    return None if any(made) or run_apart(views, side.ranks, them) else note


def _departs(views: Views, side: Side, others: _Others) -> bool:
    """Say whether one side alone departed; where all came by new callers, that is no part of what they compare."""
    found = (departs_by_key(views[each.ranks[0]], each.op, _besides(views, each)) for each in (side, *others))
    mine, *theirs = next((sides for sides in zip(*found, strict=True) if set(sides) != {None}), (None,))
    return mine is True and all(departed is False for departed in theirs)


def _left_backward(views: Views, side: Side, others: _Others) -> bool:
    """Say whether a side left out the backward of its last forward, or a part of it, as it has not done before.

    The others, after as many forwards, reduce a gradient bucket of theirs.
    """
    last = side.op.forwards
    reduced = Counter(op.forwards for op in views[side.ranks[0]].history if is_gradient_bucket(op.label))
    before = [reduced[last - n] for n in range(1, BACKWARDS_MIN + 1)]
    if is_gradient_bucket(side.op.label) or len(set(before)) > 1 or not reduced[last] < before[0]:
        return False
    return all(other.op.forwards == last and is_gradient_bucket(other.op.label) for other in others)


def _left_by_rank(views: Views, side: Side, others: _Others) -> bool:
    """Say whether a side has left a function, or a loop, that others are in, by a way out for some ranks only."""
    mine = views[side.ranks[0]]
    return any(
        left_by_rank(views[other.ranks[0]], other.site, mine, side.site) or _left_loop_at_test(views, side, other)
        for other in others
    )


def _left_loop_at_test(views: Views, side: Side, other: Side) -> bool:
    """Say whether a side has left a loop at a test of the rank, and has come past that test to the others' call before.

    Where it never made that call, the others may be wrong to make it.
    """
    mine, theirs = views[side.ranks[0]], views[other.ranks[0]]
    if not is_way_out(condition_of(views, other)) or never_called_there(mine, other.op, route_of(theirs, other.op)):
        return False
    return loop_left(theirs, other.site, mine, side.site) is not None


def _departs_in_arguments(views: Views, side: Side, others: _Others) -> bool:
    """Say whether one side alone has other arguments than before; not by a larger size: schedules bring it to all."""
    if outgrows(views[side.ranks[0]], side.op):
        return False
    theirs = [departs_in_arguments(views[other.ranks[0]], other.op) for other in others]
    return departs_in_arguments(views[side.ranks[0]], side.op) is True and all(each is False for each in theirs)


def _conditional(views: Views, side: Side, others: _Others) -> bool:
    return own_condition(views, side, others) is not None


def _left_loop(views: Views, side: Side, others: _Others) -> bool:
    mine = views[side.ranks[0]]
    left = (loop_left(views[other.ranks[0]], other.site, mine, side.site) for other in others)
    return any(each is not None and each.ends_by_itself for each in left)


def _left_loader(views: Views, side: Side, others: _Others) -> bool:
    return any(uneven_counts(views, side.ranks, other.ranks) is not None for other in others)


_SIGNS: tuple[tuple[Sign, Callable[[Views, Side, _Others], bool]], ...] = (
    (Sign.LEFT_AT_TEST, _left_by_rank),
    (Sign.DEPARTS, _departs),
    (Sign.ARGUMENTS, _departs_in_arguments),
    (Sign.BACKWARD_LEFT, _left_backward),
    (Sign.LEFT_LOADER, _left_loader),
    (Sign.TEST_OF_RANK, _conditional),
    (Sign.LEFT_LOOP, _left_loop),
)
