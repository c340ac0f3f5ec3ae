"""Makes a counterexample as small as it can: fewer ranks, statements, passes, groups, less that is unseen."""

import itertools
from collections.abc import Iterator

from tests.spmd import machine
from tests.spmd.check import Broken, Counterexample, Trial, carried_out, examined, settled_s
from tests.spmd.faults import are_few
from tests.spmd.program import Axis, Kind, Stmt
from tests.spmd.views import Sight

_MOMENTS_MAX = 40
_TRIES_MAX = 3000


def shrunk(found: Counterexample) -> Counterexample:
    """Return the smallest counterexample of the same kind that is reached by making one thing smaller at a time."""
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for trial, sight in _smaller(found.trial, found.sight):
            tries += 1
            again = _fails(trial, sight, found) if tries <= _TRIES_MAX else None
            if again is not None:
                found, smaller = again, True
                break
    return found


def _fails(trial: Trial, sight: Sight, like: Counterexample) -> Counterexample | None:
    """Return how a trial fails in the same way, at whatever moment; None if it does not."""
    if not are_few(trial.program, trial.fault.ranks):
        return None
    try:
        run = carried_out(trial)
    except (IndexError, KeyError, ValueError):  # a root that is no member any more, say
        return None
    for at_s in _moments(run):
        for found in examined(trial, run, sight._replace(at_s=at_s)):
            if (found.broken, _cause(found)) == (like.broken, _cause(like)):
                return found
    return None


def _cause(found: Counterexample) -> object:
    return found.verdict.cause if found.verdict is not None and found.broken is not Broken.SILENCE else None


def _moments(run: machine.Run) -> Iterator[float]:
    yield settled_s(run)
    times = sorted({at_s for each in run.began_s for at_s in each})
    pairs = list(itertools.pairwise(times))
    for first, second in pairs[:: max(1, len(pairs) // _MOMENTS_MAX)]:
        yield second - min(0.0005, (second - first) / 2)


def _smaller(trial: Trial, sight: Sight) -> Iterator[tuple[Trial, Sight]]:
    program = trial.program
    if sight.late_s or sight.history or sight.silent or sight.unasked:
        yield trial, Sight(sight.at_s)
    if trial.slow:
        yield trial._replace(slow=()), sight
    for rank in range(program.world):
        if program.world > 2 and rank not in trial.fault.ranks and not any(rank == each[0] for each in trial.slow):
            yield _without_rank(trial, rank), _sight_without(sight, rank)
    for body in _smaller_bodies(program.body):
        yield trial._replace(program=program._replace(body=body)), sight
    for axes in _smaller_axes(program.axes):
        yield trial._replace(program=program._replace(axes=axes)), sight


def _smaller_bodies(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, ...]]:
    for at, stmt in enumerate(body):
        before, after = body[:at], body[at + 1 :]
        yield (*before, *after)
        if stmt.body:
            yield (*before, *stmt.body, *after)
        if stmt.kind in (Kind.LOOP, Kind.PIPE) and stmt.times > 1:
            yield (*before, stmt._replace(times=stmt.times // 2), *after)
            yield (*before, stmt._replace(times=stmt.times - 1), *after)
        for inner in _smaller_bodies(stmt.body):
            yield (*before, stmt._replace(body=inner), *after)


def _smaller_axes(axes: tuple[Axis, ...]) -> Iterator[tuple[Axis, ...]]:
    """Yield axes with groups left out; calls name axes by their position, so an axis stays, if without any group."""
    for at, axis in enumerate(axes[1:], 1):
        for group in axis.groups:
            left = tuple(each for each in axis.groups if each != group)
            yield (*axes[:at], axis._replace(groups=left), *axes[at + 1 :])


def _without_rank(trial: Trial, rank: int) -> Trial:
    def lower(each: int) -> int:
        return each - (each > rank)

    axes = tuple(
        axis._replace(groups=tuple(
            group for each in axis.groups if (group := tuple(lower(member) for member in each if member != rank))
        ))
        for axis in trial.program.axes
    )  # fmt: skip
    return trial._replace(
        program=trial.program._replace(world=trial.program.world - 1, axes=axes),
        fault=trial.fault._replace(ranks=tuple(lower(each) for each in trial.fault.ranks)),
        slow=tuple((lower(each), *rest) for each, *rest in trial.slow),
    )


def _sight_without(sight: Sight, rank: int) -> Sight:
    def left(each: tuple[float, ...]) -> tuple[float, ...]:
        return each[:rank] + each[rank + 1 :]

    return Sight(sight.at_s, left(sight.late_s), tuple(map(int, left(sight.history))))
