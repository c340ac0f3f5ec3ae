"""Measures what a verdict costs on every scenario, interleaved with the same texts judged by another checkout.

`python -m tests.bench.verdicts --beside TREE`: each round judges all texts here and there, and the least CPU time of
each text counts, as other programs on the machine only ever add to it.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from ncclwatch_server.judge import judge
from tests.scenarios.texts import FILES, read

HERE = Path(__file__).parents[2]
_ROUND = "round\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures of both checkouts."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.verdicts", description=__doc__)
    parser.add_argument("--beside", type=Path, required=True, help="another checkout of this repository")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args(arguments)
    ours, theirs = _start(HERE), _start(given.beside.resolve())
    best: dict[str, tuple[float, float]] = {}
    for _ in range(given.rounds):
        mine, others = _round(ours), _round(theirs)
        for name in mine.keys() & others.keys():
            before = best.get(name, (mine[name], others[name]))
            best[name] = (min(before[0], mine[name]), min(before[1], others[name]))
    for each in (ours, theirs):
        each.communicate()
    here, there = [one for one, _ in best.values()], [other for _, other in best.values()]
    print(f"{len(best)} scenarios: {sum(here):.1f} ms here, {sum(there):.1f} ms there, x{sum(here) / sum(there):.2f}")
    print(f"median {median(here):.3f} ms here, {median(there):.3f} ms there")
    return 0


def _start(tree: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join(str(tree / each) for each in ("", "agent", "server"))
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), "judge"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _round(judging: "subprocess.Popen[str]") -> dict[str, float]:
    if judging.stdin is None or judging.stdout is None:
        return {}
    judging.stdin.write(_ROUND)
    judging.stdin.flush()
    return {name: float(ms) for name, ms in (each.split("=") for each in judging.stdout.readline().split())}


def judge_each_round() -> None:
    """Judge all texts whenever a round is asked for, and print the CPU time of each in ms."""
    snapshots = {path.stem: read(path)[0].snapshot() for path in FILES}
    for _ in sys.stdin:
        took_ms = {}
        for name, snapshot in snapshots.items():
            began_s = time.process_time()
            judge(snapshot)
            took_ms[name] = 1e3 * (time.process_time() - began_s)
        print(*(f"{name}={ms:.4f}" for name, ms in took_ms.items()), flush=True)


if __name__ == "__main__":
    sys.exit(judge_each_round() if sys.argv[1:] == ["judge"] else main())
