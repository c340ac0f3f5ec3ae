"""What does ncclwatch cost? Every row is measured in this run, against a named alternative. `make bench`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ncclwatch.native import build
from tests.bench import agent, recorder, steps
from tests.bench.onset import machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all, print one table, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", default="build/bench.json", help="where the rows go")
    parser.add_argument("--pairs", type=int, default=steps.PAIRS, help="pairs of blocks of steps")
    given = parser.parse_args(arguments)
    print(machine(), flush=True)
    build.build()
    costs = recorder.measure_in_child()
    recorder.show(costs)
    per_step = {str(row["recorder"]): float(row["added_us"]) for row in costs if row["way"] == recorder.IN_A_STEP}
    rows = steps.measure(per_step, given.pairs)
    steps.show(rows)
    node = agent.measure()
    agent.show(node)
    target = Path(given.json)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"machine": machine(), "recorder": costs, "steps": rows, "agent": node}, indent=1))
    print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
