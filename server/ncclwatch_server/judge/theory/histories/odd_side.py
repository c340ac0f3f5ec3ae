"""The ranks of a hang have taken different ways: which of them is the odd one, and why did it part?

Order of the reasons, each decisive only where the ones before are not: who differs from the majority
of like ranks; who departs from its own habit; who made a call the others never made; whose call lies
under a test of the rank; who left a loop before the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ncclwatch.contract.model.rank import CallSite, Op, OpView, RankView, SourceNote
from ncclwatch.contract.model.verdict import Cause
from ncclwatch_server.judge.theory.histories.call_sites import (
    left_by_rank,
    loop_left,
    rank_condition,
    route_of,
    ways_past,
)
from ncclwatch_server.judge.theory.histories.exceptions import Handled, astray
from ncclwatch_server.judge.theory.histories.habits import (
    Slip,
    departs_from_habit,
    departs_in_arguments,
    departure,
    find_slip,
    made_before,
    never_called_there,
    parted_in_a_loop,
)
from ncclwatch_server.judge.theory.histories.skipped_calls import Shift, find_shift
from ncclwatch_server.judge.theory.waits.rank_standing import find_issued

BUCKET_WORDS = "gradient bucket"  # how the rank labels what DDP reduces


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Ranks that stand in the same operation."""

    ranks: tuple[int, ...]
    op: OpView
    site: CallSite | None  # where the first of them waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """How two or more sides of a hang parted."""

    cause: Cause
    culprit: Side
    others: tuple[Side, ...]
    one_of: bool = False
    slip: Slip | None = None
    shift: Shift | None = None
    condition: str = ""  # the test of the rank round the culprit's call, or round the others'
    condition_on_others: bool = False
    counts: Mapping[int, int] | None = None  # batches drawn by rank, where they differ
    loop: str = ""
    escapes: tuple[str, ...] = ()
    why_culprit: str = ""
    threads: tuple[str, ...] = ()  # whose operations of one group cross
    handled: Handled | None = None  # the exception that the culprit is handling
    way_out: str = ""  # the test of the rank by which the culprit left a function
    forwards: int = 0  # that both sides have run, where one of them did not finish the last backward


def part(views: Mapping[int, RankView], sides: tuple[Side, ...], members: tuple[int, ...]) -> Parting:
    """Return how the sides parted. `sides` are at least two; `members` are those of the group."""
    strays = {each.rank: each for each in astray(views, (rank for side in sides for rank in side.ranks))}
    strayed = [side for side in sides if set(side.ranks) & set(strays)]
    if len(strayed) == 1:
        return _parted_by_exception(
            sides, strayed[0], next(strays[rank] for rank in strayed[0].ranks if rank in strays)
        )
    threads = crossing_threads(views, sides)
    if threads:
        return _parted_by_threads(sides, threads)
    first = min(side.op.seq for side in sides)
    slip = find_slip(views, sides[0].op.group, members, first)
    shift = find_shift(views, sides[0].op.group, members)
    shifted = _shifted(views, sides, shift) if shift is not None else None
    # Where a clock of progress slipped it tells best what was skipped; a call too many is told best by its own line.
    if shift is not None and shifted is not None and (slip is None or shift.seen_from(shifted.ranks).skipped < 0):
        return _parted_by_shift(views, sides, shifted, shift)
    culprit, why, decided = odd_side(views, sides, slip)
    others = tuple(side for side in sides if side is not culprit)
    found = _why(views, culprit, others, slip)
    return Parting(
        cause=found.cause,
        culprit=culprit,
        others=others,
        one_of=not decided,
        slip=slip if found.cause is Cause.DIVERGENT_CONTROL_FLOW else None,
        condition=found.condition,
        condition_on_others=found.condition_on_others,
        counts=found.counts,
        loop=found.loop,
        escapes=found.escapes,
        why_culprit=why,
        forwards=found.forwards,
        way_out=found.way_out,
    )


def _parted_by_exception(sides: tuple[Side, ...], culprit: Side, handled: Handled) -> Parting:
    return Parting(
        cause=Cause.SWALLOWED_EXCEPTION,
        culprit=culprit,
        others=tuple(side for side in sides if side is not culprit),
        handled=handled,
        why_culprit="it came there with an exception in hand",
    )


def crossing_threads(views: Mapping[int, RankView], sides: tuple[Side, ...]) -> tuple[str, ...]:
    """Return the names of the threads that use one group at a time of their own, () if no two threads do.

    Autograd's threads issue for a main thread that stands in backward; they have no name in Python.
    """
    names = []
    for side in sides:
        view = views[side.ranks[0]]
        known = {thread.tid: thread.name for thread in view.threads if thread.name and thread.name[:5] != "Dummy"}
        users = {op.thread for op in view.history if op.group == side.op.group and op.thread in known}
        if len(users) < 2 or side.op.thread not in known:
            return ()
        names.append(known[side.op.thread])
    return tuple(names) if len(set(names)) > 1 else ()


def _parted_by_threads(sides: tuple[Side, ...], threads: tuple[str, ...]) -> Parting:
    culprit = min(sides, key=lambda side: len(side.ranks))
    return Parting(
        cause=Cause.COLLECTIVE_ORDER,
        culprit=culprit,
        others=tuple(side for side in sides if side is not culprit),
        one_of=True,
        threads=threads,
        why_culprit="two threads of each rank use one group, and take turns differently on each",
    )


def _shifted(views: Mapping[int, RankView], sides: tuple[Side, ...], shift: Shift) -> Side | None:
    """Return the side that skipped or added a call before the hang, None if nobody can tell."""
    if shift.decided:
        chosen = [side for side in sides if set(side.ranks) & set(shift.ranks)]
        return chosen[0] if len(chosen) == 1 and set(chosen[0].ranks) <= set(shift.ranks) else None
    chosen = [side for side in sides if _departed_at(views, side, shift.group, shift.seq)]
    if len(chosen) != 1:  # the habit does not tell: a call that is made on one side only is one too many
        chosen = [
            side
            for side in sides
            if shift.seen_from(side.ranks).skipped < 0 and _lonely(views, side, shift.op, shift.route)
        ]
    return chosen[0] if len(chosen) == 1 else None


def who_shifted(views: Mapping[int, RankView], members: Iterable[int], shift: Shift) -> Shift | None:
    """Return a shift as the doing of those who departed from their habit, None if nobody can tell who did.

    They may have done so in another group: who leaves out the first call of a loop is then at the second one.
    """
    if shift.decided:
        return shift
    others = tuple(rank for rank in members if rank in views and rank not in shift.ranks)
    departed = [ranks for ranks in (shift.ranks, others) if ranks and departure(views[ranks[0]]) is not None]
    return shift.seen_from(departed[0]) if len(departed) == 1 else None


def _lonely(views: Mapping[int, RankView], side: Side, op: OpView, route: tuple[CallSite, ...]) -> bool:
    """Say whether no rank outside this side ever made a call."""
    return all(never_called_there(view, op, route) for rank, view in views.items() if rank not in side.ranks)


def _parted_by_shift(views: Mapping[int, RankView], sides: tuple[Side, ...], culprit: Side, shift: Shift) -> Parting:
    own = shift.seen_from(culprit.ranks)
    others = tuple(side for side in sides if side is not culprit)
    callers = culprit if own.skipped < 0 else others[0]
    note = rank_condition(views[callers.ranks[0]], own.op.site, own.op.op.value, own.route)
    what = "skipped" if own.skipped > 0 else "made"
    return Parting(
        cause=Cause.RANK_CONDITIONAL_COLLECTIVE if note is not None else Cause.DIVERGENT_CONTROL_FLOW,
        culprit=culprit,
        others=others,
        shift=own,
        condition=note.condition if note is not None else "",
        condition_on_others=callers is not culprit,
        why_culprit=f"it {what} a call that the others {'made' if own.skipped > 0 else 'did not make'}",
    )


def partings(views: Mapping[int, RankView], sides: tuple[Side, ...], members: tuple[int, ...]) -> tuple[Parting, ...]:
    """Return how sides parted: of three or more, each of those that have departed from one, if that can be told.

    They have departed from the majority of all or, without one, from the side against which the evidence decides for
    each of the others, whatever their numbers.
    """
    if len(sides) < 3:
        return (part(views, sides, members),)
    largest = max(sides, key=lambda side: len(side.ranks))
    if len(largest.ranks) * 2 > sum(len(side.ranks) for side in sides):
        return tuple(part(views, (side, largest), members) for side in sides if side is not largest)
    for usual in sorted(sides, key=lambda side: -len(side.ranks)):
        one = replace(usual, ranks=usual.ranks[:1])
        others = [side for side in sides if side is not usual]
        found = [part(views, (replace(side, ranks=side.ranks[:1]), one), members) for side in others]
        if all(not each.one_of and each.culprit.ranks != one.ranks for each in found):
            return tuple(replace(each, culprit=side, others=(usual,)) for each, side in zip(found, others, strict=True))
    return (part(views, sides, members),)


def odd_side(views: Mapping[int, RankView], sides: tuple[Side, ...], slip: Slip | None) -> tuple[Side, str, bool]:
    """Return (culprit side, reason in words, whether the evidence decides)."""
    total = sum(len(side.ranks) for side in sides)
    if slip is not None and slip.decided:
        slipped = [side for side in sides if set(side.ranks) & set(slip.ranks)]
        if len(slipped) == 1 and set(slipped[0].ranks) <= set(slip.ranks):
            return slipped[0], "it fell out of step with the others first", True
    if slip is not None and not slip.decided:
        departed = [side for side in sides if _departed_at(views, side, slip.group, slip.seq)]
        if len(departed) == 1:
            return departed[0], "it departed from its own earlier iterations first", True
    largest = max(sides, key=lambda side: len(side.ranks))
    if len(largest.ranks) * 2 > total and len(sides) == 2:
        return next(side for side in sides if side is not largest), "it differs from the majority", True
    for reason, test in (
        ("it left a function at a test of the rank", _left_by_rank),
        ("it departs from its own earlier iterations", _departs),
        ("its arguments are not those of its own earlier calls at that line", _departs_in_arguments),
        ("it left a data loader that the others still draw from", _left_loader),
        ("it makes a call the others never made", _exclusive),
        ("its call lies under a test of the rank", _conditional),
        ("it left a loop that the others are still in", _left_loop),
    ):
        chosen = [side for side in sides if test(views, side, tuple(s for s in sides if s is not side))]
        if len(chosen) == 1:
            return chosen[0], reason, True
    return min(sides, key=lambda side: len(side.ranks)), "the evidence does not decide which side is wrong", False


def _departed_at(views: Mapping[int, RankView], side: Side, group: str, seq: int) -> bool:
    op = find_issued(views[side.ranks[0]], group, seq)
    return op is not None and departs_from_habit(views[side.ranks[0]], op) is True


def _departs(views: Mapping[int, RankView], side: Side, others: tuple[Side, ...]) -> bool:
    mine = departs_from_habit(views[side.ranks[0]], side.op)
    theirs = [departs_from_habit(views[other.ranks[0]], other.op) for other in others]
    return mine is True and all(departed is False for departed in theirs)


def _left_by_rank(views: Mapping[int, RankView], side: Side, others: tuple[Side, ...]) -> bool:
    mine = views[side.ranks[0]]
    return any(left_by_rank(views[other.ranks[0]], other.site, mine, side.site) for other in others)


def _departs_in_arguments(views: Mapping[int, RankView], side: Side, others: tuple[Side, ...]) -> bool:
    theirs = [departs_in_arguments(views[other.ranks[0]], other.op) for other in others]
    return departs_in_arguments(views[side.ranks[0]], side.op) is True and all(each is False for each in theirs)


def _exclusive(views: Mapping[int, RankView], side: Side, others: tuple[Side, ...]) -> bool:
    route = route_of(views[side.ranks[0]], side.op)
    return all(never_called_there(views[rank], side.op, route) for other in others for rank in other.ranks)


def _conditional(views: Mapping[int, RankView], side: Side, _: tuple[Side, ...]) -> bool:
    return _condition(views, side) is not None


def _condition(views: Mapping[int, RankView], side: Side) -> SourceNote | None:
    view = views[side.ranks[0]]
    return rank_condition(view, side.site, side.op.op.value, route_of(view, side.op))


def _left_loop(views: Mapping[int, RankView], side: Side, others: tuple[Side, ...]) -> bool:
    mine = views[side.ranks[0]]
    return any(loop_left(views[o.ranks[0]], o.site, mine, side.site) is not None for o in others)


def _left_loader(views: Mapping[int, RankView], side: Side, others: tuple[Side, ...]) -> bool:
    return any(uneven_counts(views, side.ranks, other.ranks) is not None for other in others)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Why:
    cause: Cause
    condition: str = ""
    condition_on_others: bool = False
    counts: Mapping[int, int] | None = None
    loop: str = ""
    escapes: tuple[str, ...] = ()
    forwards: int = 0
    way_out: str = ""


def _why(views: Mapping[int, RankView], culprit: Side, others: tuple[Side, ...], slip: Slip | None) -> _Why:
    """Name the cause of a parting whose culprit is chosen."""
    other = max(others, key=lambda side: len(side.ranks))
    mine, theirs = views[culprit.ranks[0]], views[other.ranks[0]]
    # A slip says that somebody skipped or repeated work; more batches on one rank say so by themselves.
    counts = uneven_counts(views, culprit.ranks, other.ranks) or uneven_counts(views, other.ranks, culprit.ranks)
    if counts is not None and slip is None:
        return _Why(cause=Cause.UNEVEN_BATCHES, counts=counts)
    if slip is not None:
        return _Why(cause=Cause.DIVERGENT_CONTROL_FLOW, escapes=ways_past(theirs, other.site))
    if _same_call(views, culprit, other) and not (made_before(mine, culprit.op) and made_before(theirs, other.op)):
        return _Why(cause=Cause.SIGNATURE_MISMATCH)
    note = _condition(views, culprit)
    if note is not None:
        return _Why(cause=Cause.RANK_CONDITIONAL_COLLECTIVE, condition=note.condition)
    note = _condition(views, other)
    if note is not None:
        return _Why(cause=Cause.RANK_CONDITIONAL_COLLECTIVE, condition=note.condition, condition_on_others=True)
    way_out = left_by_rank(theirs, other.site, mine, culprit.site)
    if way_out:
        return _Why(cause=Cause.DIVERGENT_CONTROL_FLOW, way_out=way_out)
    if _has_less_to_reduce(culprit, other):
        return _Why(cause=Cause.DIVERGENT_CONTROL_FLOW, forwards=culprit.op.forwards)
    for leaver, stayer in ((culprit, other), (other, culprit)):
        gone, there = views[leaver.ranks[0]], views[stayer.ranks[0]]
        left = loop_left(there, stayer.site, gone, leaver.site)
        if left is not None:
            short = left.ends_by_itself and _has_done_less(leaver, stayer) and parted_in_a_loop(gone, there, stayer.op)
            cause = Cause.UNEVEN_BATCHES if short else Cause.DIVERGENT_CONTROL_FLOW
            return _Why(cause=cause, loop=left.head, escapes=left.ways_out)
    return _Why(cause=Cause.DIVERGENT_CONTROL_FLOW)


def _has_less_to_reduce(culprit: Side, other: Side) -> bool:
    """Say whether one side went on from a backward in which the other still reduces a gradient bucket."""
    same_forwards = culprit.op.forwards == other.op.forwards > 0
    return same_forwards and other.op.label.startswith(BUCKET_WORDS) and not culprit.op.label.startswith(BUCKET_WORDS)


def _has_done_less(leaver: Side, stayer: Side) -> bool:
    """Say whether who left a loop has run fewer forwards than who stays in it, as far as they are counted."""
    counted = leaver.op.forwards and stayer.op.forwards
    return not counted or leaver.op.forwards < stayer.op.forwards


def _same_call(views: Mapping[int, RankView], one: Side, other: Side) -> bool:
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


def uneven_counts(
    views: Mapping[int, RankView], short: tuple[int, ...], long: tuple[int, ...]
) -> Mapping[int, int] | None:
    """Return batches drawn by rank, if `short` ran out of data in a pass in which `long` drew more."""
    everyone = sorted((*short, *long))
    for rank in short:
        for mine in views[rank].loaders:
            number = mine.passes if mine.exhausted else mine.passes - 1
            counts = {each: _drawn(views[each], mine.site, number) for each in everyone}
            drawn = counts[rank]
            if any(_still_draws(views[other], mine.site, number) and counts[other] > drawn > 0 for other in long):
                return counts
    return None


def _drawn(view: RankView, site: CallSite, number: int) -> int:
    """Return the batches a rank drew in pass `number` of a loader, 0 if that is not known any more."""
    for loader in view.loaders:
        if loader.site == site:
            return loader.drawn if loader.passes == number else loader.last_drawn if loader.passes > number else 0
    return 0


def _still_draws(view: RankView, site: CallSite, number: int) -> bool:
    return any(each.site == site and each.passes == number and not each.exhausted for each in view.loaders)
