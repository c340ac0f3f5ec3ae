"""Judges many random programs: python -m tests.spmd --seed 1 --count 1000.

Ends with 1 where the judge is wrong in a way that is not known. With --repair it measures how well the smallest repair
names a changed rank, and ends with 1 where it is certain of another one.
"""

import argparse
import sys
import time
from collections import Counter

from tests.spmd.check import Counterexample, draw, is_known, judged
from tests.spmd.repair.measure import lines_of, measured, measured_twice
from tests.spmd.scenario import text_of
from tests.spmd.shrink import shrunk


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.spmd", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first program; each next one has the next")
    parser.add_argument("--count", type=int, default=1000, help="of programs")
    parser.add_argument("--show", action="store_true", help="show the first counterexample of each kind, known or not")
    parser.add_argument("--repair", action="store_true", help="measure the smallest repair")
    parser.add_argument("--two", action="store_true", help="with --repair: change two ranks of each program")
    given = parser.parse_args()
    if given.repair and given.two:
        both = measured_twice(given.seed, given.count)
        print("\n".join(f"{number:6} {what}" for what, number in both.items()))
        return 1 if both["certain of a rank that was not changed"] else 0
    if given.repair:
        found = measured(given.seed, given.count)
        print("\n".join(lines_of(found)))
        return 1 if found.certain_wrong else 0
    began_s, used_s = time.perf_counter(), time.process_time()
    kinds: Counter[tuple[bool, tuple[str, str, str]]] = Counter()
    first: dict[tuple[bool, tuple[str, str, str]], Counterexample] = {}
    for seed in range(given.seed, given.seed + given.count):
        for each in judged(draw(seed)):
            key = is_known(each), each.kind
            kinds[key] += 1
            first.setdefault(key, each)
    took_s, used_s = time.perf_counter() - began_s, time.process_time() - used_s
    print(
        f"{given.count} programs from seed {given.seed} in {took_s:.1f} s: {given.count / used_s:.0f} a second of CPU"
    )
    for (known, kind), number in kinds.most_common():
        mark, seed = "known" if known else "NEW  ", first[known, kind].trial.seed
        print(f"{number:6} {mark} {' '.join(kind):50} first by seed {seed}")
    new = [each for (known, _), each in first.items() if not known]
    for each in first.values() if given.show else new[:1]:
        print(f"\n{' '.join(each.kind)}, seed {each.trial.seed}, made small:\n{text_of(shrunk(each))}")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
