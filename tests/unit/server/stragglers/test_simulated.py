"""Slow ranks found among 1,024, and nothing found in healthy jobs: the numbers that the README gives.

The jobs are numpy arrays with honest noise: each rank's step varies by 2 %, ranks differ among each other a little for
good, some steps have a pause of one rank, and some a pause of all.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ncclwatch_server.stragglers.scores import Scores
from ncclwatch_server.stragglers.windows import Floats, Window

RANKS = 1024
STEPS = 2  # of a window
NOISE = 0.02  # of a step, one standard deviation


def own_s(generator: np.random.Generator, steps: int, ranks: int = RANKS, apart: float = 0.005) -> Floats:
    """Return how long each rank works in each step, (steps, ranks), in seconds of a step of one second.

    `apart` is by how much ranks differ for good, one standard deviation.
    """
    times = generator.lognormal(0.0, NOISE, (steps, ranks)) * generator.normal(1.0, apart, ranks)
    pauses = generator.random((steps, ranks)) < 2e-4
    times += pauses * generator.exponential(0.5, (steps, ranks))
    return times + (generator.random(steps) < 0.02)[:, None] * generator.exponential(2.0, steps)[:, None]


def windows_of(times: Floats) -> Iterator[Window]:
    """Cut a job into windows: in each step all wait for the last one, and transfer takes a tenth of it."""
    ranks = times.shape[1]
    for first in range(0, len(times), STEPS):
        part = times[first : first + STEPS]
        step_s = part.max(axis=1, keepdims=True) + 0.1
        yield Window(
            rank=np.arange(ranks),
            home=np.ones(ranks, np.uint64),
            blocked=(step_s - part).sum(axis=0) / step_s.sum(),
            span_s=np.full(ranks, step_s.sum()),
            operations=np.full(ranks, STEPS),
        )


def found_by(times: Floats) -> list[tuple[int, set[int]]]:
    """Return after how many steps which ranks were suspected."""
    scores = Scores(times.shape[1])
    return [
        (number * STEPS, {suspect.rank for suspect in scores.score(window)})
        for number, window in enumerate(windows_of(times), start=1)
    ]


def found_of(trials: int, slower: float, apart: float, within: int, *, after: int = 0, seed: int = 0) -> int:
    """Return in how many jobs a rank that becomes slow after some steps is found within so many, and nobody else."""
    found = 0
    for number in range(trials):
        generator = np.random.default_rng(seed + number)
        times = own_s(generator, after + within, apart=apart)
        slow = int(generator.integers(RANKS))
        times[after:, slow] *= 1.0 + slower
        said = found_by(times)
        found += any(slow in ranks for at, ranks in said if at > after) and all(ranks <= {slow} for _, ranks in said)
    return found


def healthy_flagged(windows: int, apart: float, *, seed: int = 1000) -> int:
    """Return how many windows of healthy jobs are flagged."""
    jobs = range(seed, seed + max(1, windows // 500))
    said = [found_by(own_s(np.random.default_rng(seed), 500 * STEPS, apart=apart)) for seed in jobs]
    return sum(bool(ranks) for each in said for _, ranks in each)


# Where ranks differ for good by more than that, a slow one is found by its own past.
@pytest.mark.parametrize(
    ("slower", "apart", "within", "after", "of_twenty"),
    [(0.05, 0.002, 10, 0, 14), (0.02, 0.001, 50, 0, 12), (0.05, 0.005, 10, 200, 13), (0.02, 0.005, 50, 200, 11)],
)
def test_a_slow_rank_among_1024_is_found_in_time(
    slower: float, apart: float, within: int, after: int, of_twenty: int
) -> None:
    assert found_of(20, slower, apart, within, after=after) >= of_twenty


def test_no_healthy_window_is_flagged(share_of: Callable[[int], int]) -> None:
    """Ten thousand windows are what `python -m tests.bench.stragglers` looks at."""
    assert healthy_flagged(share_of(2000), apart=0.005) == 0


def test_no_healthy_window_of_a_small_job_is_flagged(share_of: Callable[[int], int]) -> None:
    for ranks in (2, 3, 4, 8, 16, 64):
        generator = np.random.default_rng(ranks)
        assert [said for _, said in found_by(own_s(generator, share_of(400) * STEPS, ranks)) if said] == []
