"""Dumps that torch itself writes in a real job on gloo, as pickle and as JSON."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.postmortem.analysis import brief, told

RANKS = 3
PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
folder, how, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
from torch._C import _distributed_c10d as c10d
def step():
    dist.all_reduce(torch.ones(8))
for _ in range(5):
    step()
dist.barrier()
if how == "absent" and rank != 2:
    work = dist.all_reduce(torch.ones(8), async_op=True)
time.sleep(1.0)
open(f"{folder}/pickle/rank_{rank}", "wb").write(c10d._dump_fr_trace(True, True, False))
with open(f"{folder}/json/rank_{rank}.json", "wb") as file:
    file.write(c10d._dump_fr_trace_json(True, False))
open(f"{folder}/done{rank}", "w").close()
while not all(os.path.exists(f"{folder}/done{n}") for n in range(3)):
    time.sleep(0.05)
os._exit(0)
"""


def run(folder: Path, how: str) -> None:
    """Let three ranks run and dump."""
    for name in ("pickle", "json"):
        (folder / name).mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NCCLWATCH_DISABLE": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), how, str(rank)], env=environment, stderr=subprocess.DEVNULL
        )
        for rank in range(RANKS)
    ]
    try:
        assert [rank.wait(100) for rank in ranks] == [0] * RANKS
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.integration
def test_a_real_job_in_which_a_rank_does_not_come(tmp_path: Path):
    run(tmp_path, "absent")
    assert [each[3:] for each in brief(tmp_path / "pickle")] == [([2], [0, 1])]
    assert [each[3:] for each in brief(tmp_path / "json")] == [([2], [0, 1])]
    assert "<string>" not in told(tmp_path / "json")


@pytest.mark.integration
def test_a_real_job_that_is_well(tmp_path: Path):
    run(tmp_path, "well")
    assert brief(tmp_path / "pickle") == []
    assert brief(tmp_path / "json") == []
