"""Says of any moment of a run which waits some continuation ends, and who waits when nothing goes on any more.

The run itself is the answer (see `machine`): slow ranks come on in it, and those that stand still never do.
"""

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from tests.spmd.machine import NEVER, Run, awaited, key_of
from tests.spmd.program import Kind
from tests.spmd.views import Sight, seen_s


class Truth(NamedTuple):
    """What is so at a moment, as far as it is seen."""

    at_s: float
    waits: Mapping[int, tuple[str, int]]  # what ranks wait in: group and number
    freed: frozenset[int]  # ranks whose wait ends
    stuck: frozenset[int]  # ranks whose wait never ends


def at(run: Run, sight: Sight) -> Truth:
    """Return what is so at a moment."""
    waits: dict[int, tuple[str, int]] = {}
    freed, stuck = set(), set()
    for rank, steps in enumerate(run.steps):
        seen = seen_s(sight, rank)
        begun = bisect_right(run.began_s[rank], seen)
        step = steps[begun - 1] if 0 < begun <= len(steps) else None
        if step is None or run.ended_s[rank] <= seen:
            continue
        if step.kind is Kind.KEY and step.root != rank and run.key_set_s.get(key_of(step), NEVER) >= seen:
            waits[rank] = step.group, 0
            (freed if key_of(step) in run.key_set_s else stuck).add(rank)
        if step.kind in (Kind.TAKE, Kind.MAKE):
            waits[rank] = step.kind.value, 0
            (freed if len(run.began_s[rank]) > begun else stuck).add(rank)
        if step.kind is Kind.WAIT:
            call = awaited(run, rank, step, seen)
        elif step.kind is Kind.CALL and not step.is_async:
            call = next(each for each in reversed(run.calls[rank]) if each.issued_s <= seen)
        else:
            continue
        if call is None:
            continue
        waits[rank] = call.group, call.seq
        (stuck if call.done_s == NEVER else freed).add(rank)
    return Truth(sight.at_s, waits, frozenset(freed), frozenset(stuck))
