"""How soon is a slow rank of 1,024 found, and how often is a healthy one called slow? In simulation, with honest noise.

`python -m tests.bench.stragglers [--seed N] [--trials N] [--windows N]` prints one JSON text: other seeds, other jobs.
The noise is that of tests/unit/test_stragglers_simulated.py.
"""

import argparse
import json

from tests.unit.test_stragglers_simulated import found_of, healthy_flagged

# Slower by; ranks differ for good by; found within so many steps; after so many steps as a healthy rank.
CASES = (
    (0.05, 0.002, 10, 0),
    (0.05, 0.005, 10, 0),
    (0.05, 0.005, 10, 300),
    (0.05, 0.005, 20, 300),
    (0.02, 0.001, 50, 0),
    (0.02, 0.005, 50, 300),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stragglers", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=100, help="jobs with a slow rank")
    parser.add_argument("--windows", type=int, default=10_000, help="of healthy jobs")
    given = parser.parse_args()
    rows = [
        {
            "slower": slower,
            "ranks_apart": apart,
            "steps": steps,
            "healthy_steps_before": after,
            "found": found_of(given.trials, slower, apart, steps, after=after, seed=given.seed),
            "of": given.trials,
        }
        for slower, apart, steps, after in CASES
    ]
    flagged = {
        str(apart): healthy_flagged(given.windows // 2, apart, seed=given.seed + 1_000_000) for apart in (0.001, 0.005)
    }
    print(
        json.dumps({"seed": given.seed, "found": rows, "healthy_windows": given.windows, "flagged": flagged}, indent=1)
    )


if __name__ == "__main__":
    main()
