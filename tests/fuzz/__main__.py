"""`python -m tests.fuzz`: try surfaces for long, and say what was found."""

import argparse
import logging
import secrets
import sys
from pathlib import Path

from tests.fuzz.engine import SURFACES, keep, run, surface

FOUND = Path("build/fuzz")


def main() -> int:
    """Run the surfaces one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("surfaces", nargs="*", default=SURFACES, help=f"of {', '.join(SURFACES)}; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="the same one gives the same inputs")
    told = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found = 0
    for name in told.surfaces:
        tally = run(surface(name), told.seed, seconds_max=told.seconds)
        print(tally, flush=True)
        for path in keep(tally, FOUND):
            print(f"  {path}: {path.with_suffix('.txt').read_text().strip().splitlines()[-1][:160]}", flush=True)
        found += len(tally.findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
