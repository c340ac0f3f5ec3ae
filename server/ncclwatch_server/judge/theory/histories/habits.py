"""Finds where the histories of ranks first differed, and who departed from its own habit.

Ranks agree on what the n-th collective of a group is; what may differ is how far each was in its own
work when it issued it. Two clocks of progress travel with each operation: batches drawn from the
current loader, and forwards of wrapped models. A rank that skipped a backward is, from then on,
one batch ahead of the others at every collective, long before anything hangs.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ncclwatch.contract.model.rank import CallSite, OpView, RankView
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.waits.rank_standing import op_key

PERIOD_MAX = 150  # operations in one iteration that a habit may have
REPEATS_MIN = 3  # times a habit must have been seen before the operation in question
PEERS_MIN = 2  # ranks of like groups that must have passed by a call that is new
Key = tuple[object, ...]  # by what two operations are the same call


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """Ranks that have been out of step with the others since one collective."""

    ranks: tuple[int, ...]
    group: str
    seq: int  # first collective at which they were out of step
    offset: int  # of their clock against the others': positive: ahead, they skipped collectives
    clock: str  # "batch" or "forward"
    value: int  # the others' clock there
    decided: bool  # whether a majority, rather than a choice between two, says who slipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Where a rank first did something else than in its earlier iterations."""

    op: OpView  # what it did
    usual: OpView  # what it did at this place one iteration before


def find_slip(views: Mapping[int, RankView], group: str, members: Iterable[int], before_seq: int) -> Slip | None:
    """Return who fell out of step with the others in a group and still was at the last collective before `before_seq`.

    The hang itself is left out: there the sides are at different places anyhow.
    """
    by_rank = {
        rank: {op.seq: op for op in views[rank].history if op.group == group and not op.op.is_p2p}
        for rank in members
        if rank in views
    }
    by_rank = {rank: ops for rank, ops in by_rank.items() if ops}
    if len(by_rank) < 2:
        return None
    common = set.intersection(*(set(ops) for ops in by_rank.values()))
    seqs = sorted(seq for seq in common if seq < before_seq)
    for clock in ("batch", "forward"):
        slip = _slip_by(clock, by_rank, seqs, group)
        if slip is not None and _is_of_whole_steps(slip, by_rank, seqs):
            return slip
    return None


def _clock(op: OpView, clock: str) -> int:
    return op.batch if clock == "batch" else op.forwards


def _slip_by(clock: str, by_rank: Mapping[int, Mapping[int, OpView]], seqs: list[int], group: str) -> Slip | None:
    previous: Slip | None = None
    for seq in reversed(seqs):
        ops = {rank: found[seq] for rank, found in by_rank.items()}
        if clock == "batch" and len({op.loader for op in ops.values()}) > 1:
            break  # not the same loader: the counts cannot be compared
        values = {rank: _clock(op, clock) for rank, op in ops.items()}
        if not all(values.values()) or len(set(values.values())) == 1:
            break
        most = majority(_by_value(values).values())
        usual = values[most[0]] if most is not None else min(values.values())
        ranks = tuple(sorted(rank for rank, value in values.items() if value != usual))
        offset = values[ranks[0]] - usual
        if previous is not None and ranks != previous.ranks:
            break
        previous = Slip(
            ranks=ranks, group=group, seq=seq, offset=offset, clock=clock, value=usual, decided=most is not None
        )
    if previous is not None and previous.seq == seqs[0] and previous.seq > 1:
        return None  # out of step for as long as anybody remembers: a way of working, not a slip
    return previous


def _is_of_whole_steps(slip: Slip, by_rank: Mapping[int, Mapping[int, OpView]], seqs: list[int]) -> bool:
    """Say whether the others' clock runs by such steps that somebody left out, or repeated, a call of theirs.

    Where gradients are accumulated over four forwards, two forwards less make no call less.
    """
    usual = next(ops for rank, ops in by_rank.items() if rank not in slip.ranks)
    first = _habit_key(usual[slip.seq])  # other calls, such as of an evaluation, come at steps of their own
    values = [_clock(usual[seq], slip.clock) for seq in seqs if _habit_key(usual[seq]) == first]
    step = math.gcd(*(after - before for before, after in itertools.pairwise(values)))
    return not step or slip.offset % step == 0


def jumped(view: RankView, slip: Slip) -> bool | None:
    """Say whether a rank's own clock went by another step at a slip than from call to call before; None: not known.

    Who left a call out went two steps there, and who repeated one none, while the other ranks went one as ever.
    """
    ops = {op.seq: op for op in view.history if op.group == slip.group and not op.op.is_p2p and op.seq <= slip.seq}
    last = ops.get(slip.seq)
    if last is None:
        return None
    calls = [op for _, op in sorted(ops.items()) if _habit_key(op) == _habit_key(last) and op.loader == last.loader]
    steps = [_clock(after, slip.clock) - _clock(op, slip.clock) for op, after in itertools.pairwise(calls)]
    return steps[-1] != steps[0] if len(set(steps[:-1])) == 1 else None


def _by_value(values: Mapping[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank, value in values.items():
        found.setdefault(value, []).append(rank)
    return found


def departs_from_habit(view: RankView, current: OpView, others: Collection[RankView] = ()) -> bool | None:
    """Say whether an operation breaks the list of operations that a rank has repeated until then; None: unknown.

    One line may serve two callers: where the sizes and the callers repeat as well they are part of the habit. `others`
    are ranks of the same job.
    """
    return departs_by_key(view, current, others)[0]


def departs_by_key(view: RankView, current: OpView, others: Collection[RankView] = ()) -> tuple[bool | None, ...]:
    """Return the same by callers, sizes and lines, by sizes and lines, and by lines; the next where nothing repeats."""
    before = tuple(itertools.takewhile(lambda op: not _is_or_follows(op, current), view.history))
    found: list[bool | None] = [None]
    for key in reversed(_KEYS):
        turn = _turn_by(key, before, current)
        found.append(found[-1] if turn is None else _departs(turn, before[-1], current, others))
    return tuple(reversed(found[1:]))


def departure(view: RankView, others: Collection[RankView] = (), *, new: bool = False) -> Departure | None:
    """Return where a rank first broke the list of operations that it had repeated, None if it did not.

    A rank that left a call out repeats the list afterwards too, one place on: that is why the break is looked for, and
    not where the rank stands now. What one of the `others` did as well is none. Nor is a call from outside of the list,
    unless `new`: the first validation is one, and some may have left it out. And who then leaves the list may have come
    to its end, as a pipeline does by its last receives; so may who has come to the end of such a list before.
    """
    calls = [_sized_key(op) for op in view.history]
    steps = Counter(itertools.pairwise(calls))
    ended = False
    for n, step in enumerate(itertools.pairwise(calls), 1):
        # What it does more than once after the same call is no break: most are ruled out here.
        if steps[step] > 1 or not any(_periods(calls[:n])):
            continue
        before, op = view.history[n - 1], view.history[n]
        turn = _turn(view.history[:n], op)
        departs = _departs(turn, before, op, others) if turn is not None else False
        if calls[n + 1 : n + 2] and calls[n + 1] not in calls[:n]:
            ended = ended or departs is not False  # by a way that may be the end of that list
            continue
        if turn is not None and (departs or (new and departs is None and not ended)) and not _went(others, before, op):
            return Departure(op=op, usual=turn.usual)
    return None


def keeps_habit(view: RankView) -> bool:
    """Say whether a rank has repeated a list of operations, and has kept to it until now."""
    return any(_periods([_sized_key(op) for op in view.history]))


class _Turn(NamedTuple):
    """How a call relates to the list that was repeated until then."""

    usual: OpView  # what was made one iteration before
    is_usual: bool
    is_within: bool  # the call is one of the list, and makes no loop inside of it turn more or less often


def _turn(before: Sequence[OpView], current: OpView) -> _Turn | None:
    """Return how a call relates to the list that was repeated before it, None if nothing was.

    Loops lie inside of loops: that the inner one is left is usual where the outer one goes on so.
    """
    return next((turn for key in _KEYS if (turn := _turn_by(key, before, current)) is not None), None)


def _turn_by(key: Callable[[OpView], Key], before: Sequence[OpView], current: OpView) -> _Turn | None:
    calls, made = [key(op) for op in before], key(current)
    periods = list(_periods(calls))
    if not periods:
        return None
    period = next((each for each in periods if calls[-each] == made), periods[-1])
    repeated = calls[-period:]
    return _Turn(before[-period], repeated[0] == made, made in repeated and not _turns_anew(repeated, made))


def _turns_anew(repeated: Sequence[Key], made: Key) -> bool:
    """Say whether a call after a list is what a loop inside of it comes to if it turns more or less often this time.

    Micro-batches are ramped up, and an epoch ends in the middle of an accumulation: for all ranks alike.
    """
    period = len(repeated)
    for turn in range(1, period // 2 + 1):
        if made == repeated[-turn] and repeated[-turn:] == repeated[-2 * turn : -turn]:
            return True
        to_come = (repeated[n] == repeated[n - turn] for n in range(period))
        left = sum(1 for _ in itertools.takewhile(bool, to_come)) // turn  # turns
        if made in repeated[turn : left * turn + 1 : turn]:
            return True
    return False


def _periods(calls: Sequence[Key]) -> Iterator[int]:
    """Yield the periods by which a list of calls repeats itself at its end.

    Each must have been the only way in which these calls followed each other: a list that has ended in other ways as
    well is that of an inner loop. What else was called in between does not matter.
    """
    for period in range(1, min(PERIOD_MAX, len(calls) // REPEATS_MIN) + 1):
        if calls[-1] != calls[-1 - period]:
            continue  # most periods
        repeated = calls[-period * REPEATS_MIN :]
        if repeated[period:] == repeated[:-period]:
            within = set(repeated)
            own = [call for call in calls if call in within]
            if own[period:] == own[:-period]:
                yield period


def _departs(turn: _Turn, before: OpView, current: OpView, others: Collection[RankView]) -> bool | None:
    if turn.is_usual or turn.is_within:
        return not turn.is_usual
    # A call from outside of the loop may be one that comes once in many iterations, for all ranks.
    return True if _passed_by(others, before, current, turn.usual) else None


def _passed_by(others: Collection[RankView], before: OpView, made: OpView, usual: OpView) -> bool:
    """Say whether no other rank ever made a call, and several made the usual one there, in groups of their own.

    Then these groups run one source. `before` is the call before, which they made at the same number.
    """
    if made.group != usual.group or any(op.site == made.site for view in others for op in view.history):
        return False
    place, way = (before.op, before.site, before.seq), (usual.op, usual.site)
    passed = (
        view
        for view in others
        for one, two in itertools.pairwise(view.history)
        if (one.op, one.site, one.seq) == place and (two.op, two.site) == way and two.group != made.group
    )
    return sum(1 for _ in passed) >= PEERS_MIN


def _went(others: Collection[RankView], before: OpView, after: OpView) -> bool:
    """Say whether another rank has once come from one line to the other as well."""
    return any(
        (one.site, two.site) == (before.site, after.site)
        for view in others
        for one, two in itertools.pairwise(view.history)
    )


def _is_or_follows(op: OpView, current: OpView) -> bool:
    """Say whether an operation is the current one, or one of its group after it: that may be forgotten by now."""
    if (op.group, op.seq, op.op) == (current.group, current.seq, current.op):
        return True
    return op.group == current.group and op.seq > current.seq and not (op.op.is_p2p or current.op.is_p2p)


def _habit_key(op: OpView) -> Key:
    return (op.group, op.op, op.peer if op.op.is_p2p else 0, op.site)


def _sized_key(op: OpView) -> Key:
    return (*_habit_key(op), *op_key(op))


def _routed_key(op: OpView) -> Key:
    return (*_sized_key(op), op.route)


_KEYS = (_routed_key, _sized_key, _habit_key)


def parted_in_a_loop(leaver: RankView, stayer: RankView, current: OpView) -> bool:
    """Say whether the last call that two ranks agreed on is one of those that the loop round `current` makes.

    What a loop makes is made about as often as `current`; what follows a loop, once for each time through it.
    """
    theirs = {op.seq: op for op in leaver.history if op.group == current.group and not op.op.is_p2p}
    agreed = None
    for op in stayer.history:
        other = theirs.get(op.seq) if op.group == current.group and not op.op.is_p2p and op.seq < current.seq else None
        if other is not None and (op.op, op.site) == (other.op, other.site):
            agreed = op
    if agreed is None:
        return True  # nothing speaks against it
    sites = [op.site for op in stayer.history if op.group == current.group]
    return sites.count(agreed.site) * 2 >= sites.count(current.site)


def made_before(view: RankView, current: OpView) -> bool:
    """Say whether a rank has made this very call before, from the same line with the same arguments."""
    wanted = (*_routed_key(current), current.numel)
    return any((*_routed_key(op), op.numel) == wanted for op in view.history if op.seq != current.seq)


def departs_in_arguments(view: RankView, current: OpView) -> bool | None:
    """Say whether a call differs from this rank's own earlier ones at that line; None: those are not all alike."""
    earlier = {
        (op_key(op), op.numel)
        for op in view.history
        if (op.group, op.op, op.site, op.route) == (current.group, current.op, current.site, current.route)
        and op.seq != current.seq
    }
    return (op_key(current), current.numel) not in earlier if len(earlier) == 1 else None


def outgrows(view: RankView, current: OpView) -> bool:
    """Say whether a call is larger than all earlier ones of this rank at that line, and like them otherwise."""
    earlier = [
        op
        for op in view.history
        if (op.group, op.op, op.site, op.route) == (current.group, current.op, current.site, current.route)
        and op.seq != current.seq
    ]
    return bool(earlier) and all(
        op.numel < current.numel and op_key(replace(op, numel=current.numel)) == op_key(current) for op in earlier
    )


def never_called_there(view: RankView, op: OpView, route: tuple[CallSite, ...]) -> bool:
    """Say whether a rank never issued anything from this line, or never by this route, as far as it remembers."""
    if op.site is None:
        return False
    if route and any(way[0] == op.site for way in view.routes):
        return route not in view.routes
    return op.site not in view.sites and all(o.site != op.site for o in view.history)
