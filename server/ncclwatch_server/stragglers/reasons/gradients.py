"""Finds the gradient bucket in which a rank loses its time, by the gaps between its own buckets, on its own clock.

DDP reduces a bucket as soon as its gradients are there, and goes on computing. So the time from the issue of one
bucket to that of the next is what the rank computes in between; nobody else is in it.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ncclwatch.contract.model.rank import OpView, RankView

STEPS_MIN = 5  # backwards in which a gap is seen
SLOWER_MIN = 0.25  # a gap is longer than that of the others by so much
GAP_S_MIN = 0.001
_WORDS = "gradient bucket"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowBucket:
    """A gradient bucket that comes later after the one before it than on the others."""

    label: str
    own_s: float
    like_s: float


def gaps(history: Iterable[OpView]) -> dict[str, float]:
    """Return for each gradient bucket the median time in seconds after the bucket before it in one backward."""
    found: dict[str, list[float]] = {}
    before: OpView | None = None
    for op in history:
        if not op.label.startswith(_WORDS):
            continue
        if before is not None and (op.forwards, op.group, op.batch) == (before.forwards, before.group, before.batch):
            found.setdefault(op.label, []).append(before.age_s - op.age_s)
        before = op
    return {label: statistics.median(each) for label, each in found.items() if len(each) >= STEPS_MIN}


def slow_buckets(view: RankView, like: Iterable[RankView]) -> tuple[SlowBucket, ...]:
    """Return the buckets in which a rank loses time, the worst first; () where nothing tells."""
    others = [gaps(each.history) for each in like]
    found = []
    for label, own_s in gaps(view.history).items():
        theirs = [each[label] for each in others if label in each]
        if not theirs:
            continue
        like_s = statistics.median(theirs)
        if own_s > GAP_S_MIN and own_s > like_s * (1 + SLOWER_MIN):
            found.append(SlowBucket(label=label, own_s=own_s, like_s=like_s))
    return tuple(sorted(found, key=lambda each: each.like_s - each.own_s))
