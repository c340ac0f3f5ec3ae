"""Says which of few ranks are late, by their own windows alone: how so few ranks differ says nothing of chance.

Where one of two ranks is slow, or two of four, the spread between ranks is that slowness itself. What is left is time:
a rank that is late in each stretch of a minute, by much more than its lateness varies, is late for a reason.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ncclwatch_server.stragglers.windows import Floats

RANKS_MAX = 15  # of more, the spread between ranks is measured: see `scores`
WINDOWS = 20
STRETCHES = 4  # of WINDOWS, in each of which it is late
SIGMAS_MIN = 5.0  # of the mean of the windows, by how they vary
NOISE_MIN = 0.05
SHARE_MIN = 0.15  # of the time
WARN_MIN = 0.25
LATE_MIN = 0.05  # of the time, in most windows
OFTEN = 0.8


def late_for_long(late: Sequence[NDArray[np.float32]], ranks: NDArray[np.int64]) -> dict[int, float]:
    """Return by how much of the time ranks were late, those that were in all of the newest windows."""
    if not 2 <= len(ranks) <= RANKS_MAX or len(late) < WINDOWS:
        return {}
    newest: Floats = np.array([each[ranks] for each in list(late)[-WINDOWS:]], np.float64)
    share = newest.mean(axis=0)
    stretches = newest.reshape(STRETCHES, -1, len(ranks)).mean(axis=1)
    error = np.maximum(newest.std(axis=0, ddof=1), NOISE_MIN) / math.sqrt(WINDOWS)
    # What wanders slowly varies more between stretches than windows tell.
    error = np.maximum(error, stretches.std(axis=0, ddof=1) / math.sqrt(STRETCHES))
    found = (share >= SHARE_MIN) & (share >= SIGMAS_MIN * error) & ((newest >= LATE_MIN).mean(axis=0) >= OFTEN)
    found &= stretches.min(axis=0) >= np.maximum(share / 2, LATE_MIN)
    return {int(ranks[place]): float(share[place]) for place in np.flatnonzero(found)}
