"""Measures how long it takes from the onset of a hang to its verdict, over the whole zoo. `make onset`.

Prints the machine, every run, and the row that the README shows. Not a test: it passes no
judgement on the times, only on the verdicts.
"""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.zoo import runner


def machine() -> str:
    """Return the processor, its cores and the interpreter, as the README names them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {names[0] if names else platform.machine()}, Python {platform.python_version()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the zoo `--repeat` times and return the runner's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.onset", description=__doc__)
    parser.add_argument("--repeat", type=int, default=1, help="how often each program runs")
    parser.add_argument("--json", default="", help="write all scores to this file")
    given = parser.parse_args(arguments)
    print(machine(), flush=True)
    return runner.main(["--repeat", str(given.repeat), *(["--json", given.json] if given.json else [])])


if __name__ == "__main__":
    sys.exit(main())
