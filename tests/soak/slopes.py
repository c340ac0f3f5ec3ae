"""Says whether a gauge grows: a line through it after warm-up, and how far its slope may be off.

Ordinary least squares on the means of blocks of samples: neighbouring samples depend on each other, means of blocks
hardly do. The error is that of Student's t with two parameters fitted.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BLOCKS = 12
T = 3.17  # Student's t with 10 degrees of freedom, 0.5 % on each side
WARM_UP = 0.3  # of the samples, left out


@dataclass(frozen=True, slots=True)
class Slope:
    """By how much a gauge grows for a thousand jobs, and by how much more or less that may be."""

    mean: float
    per_thousand: float
    error: float

    @property
    def grows(self) -> bool:
        """Whether it is above zero by more than its error."""
        return self.per_thousand > self.error


def slope(jobs: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the slope of a gauge, by how many jobs had ended at each sample.

    Raises ValueError for too few samples after warm-up.
    """
    first = int(len(jobs) * WARM_UP)
    kept = list(zip(jobs, values, strict=True))[first:]
    size = len(kept) // BLOCKS
    if size < 1:
        raise ValueError(f"{len(jobs)} samples are too few: {BLOCKS} blocks are needed after warm-up")
    blocks = [kept[len(kept) - size * (n + 1) : len(kept) - size * n] for n in range(BLOCKS)]
    at = [statistics.fmean(x for x, _ in block) for block in blocks]
    means = [statistics.fmean(y for _, y in block) for block in blocks]
    fitted = statistics.linear_regression(at, means)
    residues = [y - fitted.slope * x - fitted.intercept for x, y in zip(at, means, strict=True)]
    spread = sum((x - statistics.fmean(at)) ** 2 for x in at)
    error = T * math.sqrt(sum(each * each for each in residues) / (BLOCKS - 2) / spread)
    return Slope(statistics.fmean(means), fitted.slope * 1000, error * 1000)


def slopes(samples: Sequence[Mapping[str, float]]) -> dict[str, Slope]:
    """Return the slope of each gauge. What is counted up, as CPU is, is told for each job."""
    jobs = [sample["jobs"] for sample in samples]
    found = {}
    for name in samples[0]:
        if name in ("jobs", "seconds"):
            continue
        values = [sample[name] for sample in samples]
        if name.endswith("CPU s"):
            pairs = itertools.pairwise(samples)
            each = [(b[name] - a[name]) / (b["jobs"] - a["jobs"]) for a, b in pairs]
            found[f"{name} for each job"] = slope(jobs[1:], each)
        else:
            found[name] = slope(jobs, values)
    return found
