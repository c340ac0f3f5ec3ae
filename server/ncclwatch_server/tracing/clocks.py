"""Aligns the clocks of hosts by what collectives prove of them.

Nobody leaves a blocking collective before all members have entered it. So the moment at which one member goes on to
its next operation is after every member's entry: each collective bounds the difference of two clocks from both sides,
as messages do (Duda, Harrus, Haddad and Bernard, "Estimating Global Time in Distributed Systems", ICDCS 1987). Bounds
of pairs that share no collective follow along shortest paths. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ncclwatch_server.tracing.model import Clock

CLOCKS_MAX = 512  # more are left as they are: the matrix of bounds grows with the square


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One rank in one collective, by its clock."""

    clock: str
    entered_s: float
    left_s: float | None  # when it had surely left: its next operation on that thread; None: it has not


def align(names: Sequence[str], collectives: Iterable[Sequence[Passage]]) -> dict[str, Clock]:
    """Return the clocks with these names, relative to the first one."""
    if not names or len(names) > CLOCKS_MAX:
        return {name: Clock(error_s=None) for name in names}
    place = {name: number for number, name in enumerate(names)}
    above = np.full((len(names), len(names)), np.inf)  # [a, b]: clock a is ahead of clock b by no less than minus this
    for passages in collectives:
        entered, left = np.full(len(names), -np.inf), np.full(len(names), np.inf)
        for each in passages:
            at = place[each.clock]
            entered[at] = max(entered[at], each.entered_s)
            if each.left_s is not None:
                left[at] = min(left[at], each.left_s)
        # entered_a + offset_a <= left_b + offset_b
        above = np.minimum(above, left[None, :] - entered[:, None])
    np.fill_diagonal(above, 0.0)
    for middle in range(len(names)):
        above = np.minimum(above, above[:, middle, None] + above[None, middle, :])
    return {name: _clock(float(-above[0, at]), float(above[at, 0])) for name, at in place.items()}


def _clock(least: float, most: float) -> Clock:
    """Return the clock whose offset lies between two bounds."""
    if np.isinf(least) and np.isinf(most):
        return Clock(error_s=None)
    if np.isinf(least) or np.isinf(most):
        return Clock(offset_s=min(0.0, most) if np.isinf(least) else max(0.0, least), error_s=None)
    if most < least:  # the clocks ran apart meanwhile
        return Clock(offset_s=(least + most) / 2, error_s=None)
    return Clock(offset_s=(least + most) / 2, error_s=(most - least) / 2)
