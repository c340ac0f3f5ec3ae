"""Rank 1 raises in the first attempt, once it may; in the second one it goes to a barrier that the others never reach.

The argument is a directory: a file "fail" in it lets it raise. Rank 0 outlives the loss, so that its launcher ends it
for the restart of the other node, and counts no failure.
"""

import itertools
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ncclwatch

HANGS_AT = 30


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    may_fail, failed = Path(sys.argv[1], "fail"), Path(sys.argv[1], "failed")
    again = failed.exists()
    for step in itertools.count():
        time.sleep(0.05)
        if dist.get_rank() == 1 and not again and step > 20 and may_fail.exists():
            failed.touch()
            raise RuntimeError("the first attempt fails")
        if step == HANGS_AT and again and dist.get_rank() == 1:
            dist.barrier()
        try:
            dist.all_reduce(torch.ones(4))
        except RuntimeError:
            break
    time.sleep(600)


main()
