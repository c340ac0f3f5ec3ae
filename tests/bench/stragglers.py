"""How soon is a slow rank of 1,024 found, and how often is a healthy one called slow? In simulation, with honest noise.

`python -m tests.bench.stragglers` prints one JSON text. The noise is that of tests/unit/test_stragglers_simulated.py.
"""

import json

from tests.unit.test_stragglers_simulated import found_of, healthy_flagged

TRIALS = 100
WINDOWS = 10_000


def main() -> None:
    """Measure and print."""
    cases = ((0.05, 0.002, 10), (0.05, 0.005, 10), (0.02, 0.001, 50))
    rows: list[dict[str, float]] = [
        {"slower": slower, "ranks_apart": apart, "steps": steps, "found_of_100": found_of(TRIALS, slower, apart, steps)}
        for slower, apart, steps in cases
    ]
    flagged = {str(apart): healthy_flagged(WINDOWS // 2, apart) for apart in (0.001, 0.005)}
    print(json.dumps({"found": rows, "healthy_windows": WINDOWS, "flagged": flagged}, indent=1))


if __name__ == "__main__":
    main()
