"""Measures by how much attach() puts off a job's start: from before it to the end of init_process_group, on 8 ranks.

Ranks meet before, so that none waits for another one's imports. The agent is started meanwhile, on the same cores.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.row import Row, at_most
from tests.integration.launch import environment

RANKS, TRIES = 8, 8
ADDED_S_MAX = 1.0  # on two cores; of 8 ranks on cores of their own only attach() itself is left
_PROGRAM = """
import json, os, sys, time
import torch, torch.distributed as dist
import ncclwatch

place = sys.argv[1]
open(f"{place}/{os.environ['RANK']}", "w").close()
while len(os.listdir(place)) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.001)
began = time.monotonic()
ncclwatch.attach()
attached = time.monotonic()
dist.init_process_group("gloo")
with open(f"{sys.argv[2]}/{os.environ['RANK']}", "w") as file:
    json.dump([attached - began, time.monotonic() - began], file)
dist.destroy_process_group()
"""


def rows() -> list[Row]:
    """Return the medians of pairs of starts, one of each with ncclwatch turned off."""
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "starts.py"
        program.write_text(_PROGRAM)
        for number in range(2 * TRIES):
            attached = number % 2 == 0
            found[attached].append(_started(program, attached=attached))
    attach_s = statistics.median(own for own, _ in found[True])
    alone_s, with_s = (statistics.median(total for _, total in found[attached]) for attached in (False, True))
    made = []
    for what, ours, bound in (
        ("attach() of the slowest of 8 ranks", attach_s, ADDED_S_MAX),
        ("start of 8 ranks without ncclwatch", alone_s, float("inf")),
        ("start of 8 ranks with it, beyond that", with_s - alone_s, ADDED_S_MAX),
    ):
        budget, met = at_most(bound, ours, "s")
        made.append(Row(what=what, unit="s", ours=ours, budget=budget, met=met))
    return made


def _started(program: Path, *, attached: bool) -> tuple[float, float]:
    """Return how long attach() took on the slowest rank, and the whole start on the slowest."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as runtime,
        tempfile.TemporaryDirectory() as place,
        tempfile.TemporaryDirectory() as answers,
    ):
        settings = environment(Path(runtime), NCCLWATCH_DISABLE="0" if attached else "1")
        del settings["NCCLWATCH_AGENT"]
        ran = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
             str(program), place, answers],
            env=settings, check=True, capture_output=True, text=True,
        )  # fmt: skip
        each = [json.loads(path.read_text()) for path in Path(answers).iterdir()]
    if len(each) != RANKS:
        raise SystemExit(f"{len(each)} of {RANKS} ranks said how long they took: {ran.stderr[-500:]}")
    return max(own for own, _ in each), max(total for _, total in each)
