"""Finds where the histories of ranks first differed, and who departed from its own habit.

Ranks agree on what the n-th collective of a group is; what may differ is how far each was in its own
work when it issued it. Two clocks of progress travel with each operation: batches drawn from the
current loader, and forwards of wrapped models. A rank that skipped a backward is, from then on,
one batch ahead of the others at every collective, long before anything hangs.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ncclwatch.contract.model.rank import CallSite, OpView, RankView
from ncclwatch_server.judge.theory.majority import majority
from ncclwatch_server.judge.theory.waits.rank_standing import op_key

PERIOD_MAX = 150  # operations in one iteration that a habit may have
REPEATS_MIN = 2  # times a habit must have been seen before the operation in question


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


def departs_from_habit(view: RankView, current: OpView) -> bool | None:
    """Say whether an operation breaks the repeating list of operations that led to it; None: no habit known.

    One line may serve two callers: where the sizes and the callers repeat as well they are part of the habit.
    """
    for key in (_routed_key, _sized_key, _habit_key):
        departs = _departs(view, current, key)
        if departs is not None:
            return departs
    return None


def _departs(view: RankView, current: OpView, key: Callable[[OpView], tuple[object, ...]]) -> bool | None:
    keys: list[tuple[object, ...]] = []
    for op in view.history:
        if (op.group, op.seq, op.op) == (current.group, current.seq, current.op):
            break
        keys.append(key(op))
    known, wanted = False, key(current)
    for period in range(1, min(PERIOD_MAX, len(keys) // REPEATS_MIN) + 1):
        tail = keys[-period:]
        if all(keys[-period * (n + 1) : len(keys) - period * n] == tail for n in range(1, REPEATS_MIN)) and (
            period > 1 or keys[-3:] == tail * 3
        ):
            # Loops lie inside of loops: that the inner one is left is no departure where the outer one goes on so.
            if wanted == tail[0]:
                return False
            known = True
    return True if known else None


def departure(view: RankView) -> Departure | None:
    """Return where a rank first broke the list of operations that it repeated until then, None if it did not.

    Of all periods the one counts that the history keeps to for longest. A rank that left a call out keeps to it
    afterwards too, one place on: that is why the break is looked for, and not where the rank stands now.
    """
    for start, reach, period in _habits(view):
        if start + reach < len(view.history):
            return Departure(op=view.history[start + reach], usual=view.history[start + reach - period])
    return None


def keeps_habit(view: RankView) -> bool:
    """Say whether a rank has repeated a list of operations, and has kept to it until now."""
    return any(start + reach == len(view.history) for start, reach, _ in _habits(view))


def _habits(view: RankView) -> Iterator[tuple[int, int, int]]:
    """Yield from where, for how many operations and by what period a rank repeated what it did."""
    numbers: dict[tuple[object, ...], int] = {}
    keys = [numbers.setdefault(_sized_key(op), len(numbers)) for op in view.history]
    counts = Counter(keys)
    first = next((n for n, key in enumerate(keys) if counts[key] > REPEATS_MIN), 0)
    for start in sorted({0, first}):  # what is made at the start of training alone, to agree on shapes, is no habit
        reach, period = _repeated(keys[start:])
        if reach:
            yield start, reach, period


def _repeated(keys: Sequence[int]) -> tuple[int, int]:
    """Return for how long a list repeats itself, and by what period; (0, 0) if it does not."""
    reach, habit = 0, 0
    for period in range(1, len(keys) // REPEATS_MIN + 1):
        kept = next((n for n in range(len(keys) - period) if keys[n] != keys[n + period]), len(keys) - period)
        if kept >= max(2, period * (REPEATS_MIN - 1)) and kept + period > reach:
            reach, habit = kept + period, period
    return reach, habit


def _habit_key(op: OpView) -> tuple[object, ...]:
    return (op.group, op.op, op.peer if op.op.is_p2p else 0, op.site)


def _sized_key(op: OpView) -> tuple[object, ...]:
    return (*_habit_key(op), *op_key(op))


def _routed_key(op: OpView) -> tuple[object, ...]:
    return (*_sized_key(op), op.route)


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


def never_called_there(view: RankView, op: OpView, route: tuple[CallSite, ...]) -> bool:
    """Say whether a rank never issued anything from this line, or never by this route, as far as it remembers."""
    if op.site is None:
        return False
    if route and any(way[0] == op.site for way in view.routes):
        return route not in view.routes
    return op.site not in view.sites and all(o.site != op.site for o in view.history)
