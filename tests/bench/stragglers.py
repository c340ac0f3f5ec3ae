"""Measures how soon a slow rank of 1,024 is found, how often a healthy one is called slow, and what looking costs.

`python -m tests.bench.stragglers [--seed N] [--trials N] [--windows N]` prints one JSON text: other seeds, other jobs.
The noise is that of tests/unit/server/stragglers/test_simulated.py. Costs are CPU time of one look at all ranks, where
a window of the job has ended and where none has, as in most ticks.
"""

import argparse
import json
import math
import statistics
from dataclasses import asdict
from statistics import NormalDist

import numpy as np

from ncclwatch_server.state.digest_rows import RANK_DTYPE
from ncclwatch_server.stragglers.scores import FALSE_MAX
from ncclwatch_server.stragglers.tracker import Stragglers
from tests.bench.layouts import timed
from tests.bench.row import Row
from tests.unit.server.stragglers.test_simulated import NOISE, found_of, healthy_flagged

# Slower by; ranks differ for good by; found within so many steps; after so many steps as a healthy rank.
CASES = (
    (0.05, 0.002, 10, 0),
    (0.05, 0.005, 10, 0),
    (0.05, 0.005, 10, 300),
    (0.05, 0.005, 20, 300),
    (0.02, 0.001, 50, 0),
    (0.02, 0.005, 50, 300),
)
RANKS = (1024, 16_384)
LOOKS = 40


def rows(*, seed: int = 0, trials: int = 100, windows: int = 10_000) -> list[Row]:
    """Measure all."""
    found = [
        Row(
            what=f"a rank {slower:.0%} slower of 1,024 that differ by {apart:.1%} for good, found within {steps} steps"
            + (f" of becoming so after {after}" if after else ""),
            unit="% of jobs",
            ours=100 * found_of(trials, slower, apart, steps, after=after, seed=seed) / trials,
            peer="a test that knows the noise, with as few false alarms",
            theirs=100 * at_best(slower, apart, steps, after),
        )
        for slower, apart, steps, after in CASES
    ]
    flagged = sum(healthy_flagged(windows // 2, apart, seed=seed + 1_000_000) for apart in (0.001, 0.005))
    what = f"of {windows:,} windows of healthy jobs of 1,024 ranks, called slow"
    found.append(Row(what=what, unit="windows", ours=flagged, budget="none", met=flagged == 0))
    for ranks in RANKS:
        idle, ended = looks_ms(ranks)
        found.append(Row(what=f"pace of {ranks:,} ranks, no window has ended", unit="ms of CPU", ours=idle))
        found.append(Row(what=f"pace of {ranks:,} ranks, a window has ended", unit="ms of CPU", ours=ended))
    return found


def at_best(slower: float, apart: float, steps: int, after: int) -> float:
    """Return in what share of jobs the best of all tests finds the slow rank: the limit of any method.

    That is Neyman and Pearson's, of one mean against another: the noise and the healthy mean of each rank are told to
    it (what ranks differ by for good only by its own past), no rank ever pauses, and it looks once, at the end. It may
    be wrong about any of 1,024 ranks as seldom as ours.
    """
    lasting = apart**2 if not after else NOISE**2 / after
    bound = -NormalDist().inv_cdf(FALSE_MAX / RANKS[0])
    return NormalDist().cdf(slower / math.sqrt(NOISE**2 / steps + lasting) - bound)


def looks_ms(ranks: int) -> tuple[float, float]:
    """Return the median cost of a look at a healthy job in which no window has ended, and of one in which one has."""
    known, generator = Stragglers(ranks), np.random.default_rng(ranks)
    table, rank = np.zeros(ranks, RANK_DTYPE), np.arange(ranks)
    table["rank"], table["pace_group"] = rank, 7
    idle, ended = [], []
    for number in range(LOOKS):
        for half in (slice(0, ranks // 2), slice(ranks // 2, ranks)):  # nodes report one after the other
            count = len(rank[half])
            table["pace_seq"][half] += 8
            table["pace_ms"][half] += 2000
            table["pace_waited_ns"][half] += (2e9 * np.clip(generator.normal(0.1, 0.01, count), 0.0, 1.0)).astype(
                np.uint64
            )
            table["steps"][half] += 8
            costs = idle if half.start == 0 else ended
            costs.append(timed(lambda now=2.0 * number: known.add_rows(table, rank, now)))  # type: ignore[misc]
    return statistics.median(idle[LOOKS // 2 :]), statistics.median(ended[LOOKS // 2 :])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stragglers", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=100, help="jobs with a slow rank")
    parser.add_argument("--windows", type=int, default=10_000, help="of healthy jobs")
    given = parser.parse_args()
    found = rows(seed=given.seed, trials=given.trials, windows=given.windows)
    print(json.dumps({"seed": given.seed, "rows": [asdict(row) for row in found]}, indent=1))


if __name__ == "__main__":
    main()
