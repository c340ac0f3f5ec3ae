"""Plays days of simulated jobs to a real watch and judge: python -m tests.years --seed 1 --job-days 99 --faulty 99.

Ends with 1 where a healthy job had a critical incident other than in a pause of a whole node, a verdict named a rank
that the fault did not touch, or the judge failed. The same seed plays the same; job n of a run has seed + n. Ctrl-C and
SIGTERM end a run after the job that is being played, with the figures so far.
"""

import argparse
import logging
import signal
import sys
import threading
import time
from pathlib import Path

from tests.years.day import DAY_S, Playing, healthy
from tests.years.faults import play
from tests.years.figures import Faulty, Healthy, keep

FAULTY_FROM = 500_000_000  # seeds of faulty jobs lie apart


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.years", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first job; each next one has the next")
    parser.add_argument("--job-days", type=int, default=100, help="of healthy jobs, a day each")
    parser.add_argument("--faulty", type=int, default=100, help="jobs with a fault")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of each kind; stops where it is then")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stopped.set())
    well, ill = Healthy(), Faulty()
    began_s, used_s = time.monotonic(), time.process_time()
    for seed in range(given.seed, given.seed + given.job_days):
        well.add(seed, played := Playing(seed).run(lambda playing: healthy(playing, 1.0)), 1.0)
        assert played.simulated_s >= DAY_S
        if stopped.is_set() or time.monotonic() - began_s > given.minutes * 60:
            break
    minutes = (time.process_time() - used_s) / 60
    lines = [*well.lines(), f"{well.days / minutes:,.0f} job-days a minute of CPU"] if well.days else []
    print("\n".join(lines), flush=True)
    began_s = time.monotonic()
    for seed in range(given.seed, given.seed + given.faulty):
        ill.outcomes.append(play(FAULTY_FROM + seed))
        if stopped.is_set() or time.monotonic() - began_s > given.minutes * 60:
            break
    if ill.outcomes:
        print("\n".join(ill.lines()))
    if given.json:
        keep(given.json, well, ill)
    unexplained = [each for each in well.critical if "node_pauses" not in each[1]]
    return 1 if unexplained or ill.wrong or well.failures else 0


if __name__ == "__main__":
    sys.exit(main())
