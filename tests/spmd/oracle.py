"""Says of any moment of a run which waits some continuation ends, and who waits when nothing goes on any more.

A rank waits where its host does, and where its device does, however far its host has run ahead.

The run itself is the answer (see `machine`): slow ranks come on in it, and those that stand still never do.
"""

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from tests.spmd.machine import NEVER, Run, key_of, unfinished
from tests.spmd.program import Kind
from tests.spmd.views import Sight, seen_s


class Truth(NamedTuple):
    """What is so at a moment, as far as it is seen."""

    at_s: float
    waits: Mapping[int, frozenset[tuple[str, int]]]  # what ranks wait in: group and number
    freed: frozenset[int]  # ranks whose wait ends
    stuck: frozenset[int]  # ranks whose wait never ends


def at(run: Run, sight: Sight) -> Truth:
    """Return what is so at a moment."""
    waits: dict[int, frozenset[tuple[str, int]]] = {}
    freed, stuck = set(), set()
    for rank, steps in enumerate(run.steps):
        seen = seen_s(sight, rank)
        begun = bisect_right(run.began_s[rank], seen)
        step = steps[begun - 1] if 0 < begun <= len(steps) else None
        if step is None or run.ended_s[rank] <= seen:
            continue
        if step.kind is Kind.KEY and step.root != rank and run.key_set_s.get(key_of(step), NEVER) >= seen:
            waits[rank] = frozenset({(step.group, 0)})
            (freed if key_of(step) in run.key_set_s else stuck).add(rank)
        if step.kind in (Kind.TAKE, Kind.MAKE):
            waits[rank] = frozenset({(step.kind.value, 0)})
            (freed if len(run.began_s[rank]) > begun else stuck).add(rank)
        if calls := unfinished(run, rank, begun - 1, seen):
            waits[rank] = frozenset((call.group, call.seq) for call in calls)
            (stuck if any(call.done_s == NEVER for call in calls) else freed).add(rank)
        if run.program.device and (calls := [call for call in run.calls[rank] if call.issued_s <= seen < call.done_s]):
            waits[rank] = frozenset((call.group, call.seq) for call in calls)
            if any(call.done_s == NEVER for call in calls):
                stuck.add(rank)
    return Truth(sight.at_s, waits, frozenset(freed - stuck), frozenset(stuck))
