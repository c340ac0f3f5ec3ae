"""`python -m tests.soak --jobs 5000`: run small real jobs on one server and agent, and print what of theirs grows.

One job in 25 goes wrong, and has to be told as what it is; the others must not be told at all. Ends with 1 if one is
told wrongly, or a gauge grows by more than its error.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.soak.jobs import Ended, plans
from tests.soak.slopes import slopes
from tests.soak.world import World

EVERY = 10  # jobs between two samples
JOBS_MIN = 200
SHM = "/dev/shm"


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4, help="jobs that run at a time")
    parser.add_argument("--samples", type=Path, help="where the samples are written, as lines of JSON")
    parser.add_argument("--keep", action="store_true", help="keep logs and store")
    told = parser.parse_args()
    if told.jobs < JOBS_MIN:
        parser.error(f"--jobs: at least {JOBS_MIN} are needed to tell a slope, not {told.jobs}")
    directory = Path(tempfile.mkdtemp(prefix="ncclwatch-soak-", dir=SHM))
    ended: list[Ended] = []
    with World(directory).started() as world:
        for each in world.run(plans(told.jobs, told.seed), told.at_once, EVERY):
            ended.append(each)
            if each.fault:
                print(f"{each.plan.name} ({each.plan.wrong or 'healthy'}): {each.fault}", flush=True)
            if len(ended) % 100 == 0 and world.samples:
                print(f"{len(ended)} jobs in {world.samples[-1]['seconds']:.0f} s", flush=True)
                _keep(told.samples, world.samples)
    _keep(told.samples, world.samples)
    grows = _told(ended, world.samples)
    if told.keep:
        print(f"logs and store are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if grows or any(each.fault for each in ended) else 0


def _keep(path: Path | None, samples: list[dict[str, float]]) -> None:
    if path is not None:
        path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def _told(ended: list[Ended], samples: list[dict[str, float]]) -> list[str]:
    """Print what was measured; returns the gauges that grow."""
    wrong = [each for each in ended if each.plan.wrong]
    told = sorted(each.told_s for each in wrong if not each.fault)
    print(
        f"{len(ended)} jobs, {len(wrong)} of which went wrong; {sum(bool(each.fault) for each in ended)} told wrongly"
    )
    if told:
        print(f"told {told[len(told) // 2]:.1f} s after their start (median; longest {told[-1]:.1f} s)")
    found = slopes(samples)
    print(f"{'gauge':32} {'mean':>10} {'for 1,000 jobs':>15} {'+-':>8}")
    for name, each in found.items():
        mark = "GROWS" if each.grows else ""
        print(f"{name:32} {each.mean:10.2f} {each.per_thousand:+15.3f} {each.error:8.3f} {mark}")
    return [name for name, each in found.items() if each.grows]


if __name__ == "__main__":
    sys.exit(main())
