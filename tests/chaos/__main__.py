"""`python -m tests.chaos`: put each fault at each step of an incident's life, and print what came of it."""

import argparse
import contextlib
import math
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.chaos.life import STEPS, Cell
from tests.chaos.mounts import own_mounts
from tests.chaos.table import FAULTS
from tests.integration.real_jobs import mine

SHM = "/dev/shm"


def main() -> int:
    """Run the cells; returns 1 if one is red."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="the same one gives the same faults")
    parser.add_argument("--only", action="append", default=[], metavar="STEP,FAULT", help="either may be empty or *")
    parser.add_argument("--share", type=float, default=1.0, help="how much of the table, drawn with the seed")
    parser.add_argument("--jobs", type=int, default=3, help="cells at a time")
    parser.add_argument("--keep", action="store_true", help="keep what a red cell has left")
    told = parser.parse_args()
    cells = chosen(told.seed, told.only, told.share)
    if not cells:
        parser.error(f"no such cell; steps: {', '.join(STEPS)}; faults: {', '.join(fault.name for fault in FAULTS)}")
    if not own_mounts():
        cells = [cell for cell in cells if not cell.fault.mounts]
        print("nothing can be mounted here: cells that need that are left out")
    print(f"seed {told.seed}: {len(cells)} cells, {told.jobs} at a time", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="ncclwatch-chaos-", dir=SHM))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool = ThreadPoolExecutor(told.jobs)
    try:
        list(pool.map(lambda cell: _run(cell, directory, told.keep), cells))
    except KeyboardInterrupt:  # the cells under way are not waited for
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for left in mine(directory):
            with contextlib.suppress(psutil.Error):
                left.kill()
        shutil.rmtree(directory, ignore_errors=True)
        print(table([cell for cell in cells if cell.seconds]), flush=True)
        os._exit(130)
    print(table(cells))
    if not told.keep:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if all(cell.green for cell in cells) else 1


def chosen(seed: int, only: list[str], share: float) -> list[Cell]:
    """Return the cells to run, in an order that the seed gives."""
    wanted = [tuple([*each.split(","), "*"][:2]) for each in only] or [("*", "*")]
    cells = [
        Cell(step, fault, seed)
        for fault in FAULTS
        for step in STEPS
        if any(s in ("", "*", step) and (f in ("", "*") or fault.name.startswith(f)) for s, f in wanted)
        and step not in fault.never
    ]
    dice = random.Random(seed)
    dice.shuffle(cells)
    return cells[: math.ceil(len(cells) * share)]


def _run(cell: Cell, parent: Path, keep: bool) -> None:
    directory = Path(tempfile.mkdtemp(dir=parent))
    cell.run(directory)
    said = "green" if cell.green else f"RED {directory if keep else ''}"
    print(f"{cell.step:<10}{cell.fault.name:<18}{cell.seconds:>5.0f} s  {said}  {'; '.join(cell.seen)}", flush=True)
    for failure in cell.failures:
        print(f"    {failure[:600]}", flush=True)
    if cell.green or not keep:
        shutil.rmtree(directory, ignore_errors=True)


def table(cells: list[Cell]) -> str:
    """Return the table: a row for each fault, a column for each step."""
    by_place = {(cell.fault.name, cell.step): cell for cell in cells}
    lines = ["", f"{'':<18}" + "".join(f"{step:<11}" for step in STEPS)]
    for fault in FAULTS:
        row = [by_place.get((fault.name, step)) for step in STEPS]
        if any(row):
            words = ["" if cell is None else "green" if cell.green else "RED" for cell in row]
            lines.append(f"{fault.name:<18}" + "".join(f"{word:<11}" for word in words))
    red = [cell for cell in cells if not cell.green]
    lines += ["", f"{len(cells) - len(red)} green, {len(red)} red"]
    lines += [f"  python -m tests.chaos --seed {c.seed} --only {c.step},{c.fault.name}" for c in red]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
