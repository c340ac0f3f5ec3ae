"""How long a job stands still that torchrun starts again after a hang: python -m tests.bench.restarts [RUNS].

Two nodes with two ranks each (needs root: each node has its own network). One rank is stopped; the agents end the
ranks, and torchrun starts them again. Measured from the stop to the first step of the new attempt.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from tests.integration.cluster import Cluster

END_S = 120.0


def once() -> float:
    """Return how long one job stood still, in seconds."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        with Cluster(2, directory) as cluster:
            jobs = [
                cluster.torchrun(
                    node, "tried_again.py", str(directory), ranks=2, restarts=1, NCCLWATCH_ON_HANG="restart"
                )
                for node in (0, 1)
            ]
            for job in jobs:
                job.communicate(timeout=END_S)
            stepped, stopped = (directory / name for name in ("stepped01", "stopped"))
            return stepped.stat().st_mtime - stopped.stat().st_mtime
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    """Measure so many runs, and print the median and the maximum."""
    runs = [once() for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20)]
    print(f"{len(runs)} runs: median {statistics.median(runs):.1f} s, at most {max(runs):.1f} s")


if __name__ == "__main__":
    main()
