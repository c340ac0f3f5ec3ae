"""Two ranks that train for a moment, one of which may go wrong: program.py WRONG AT, as named in `jobs`."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import ncclwatch

STEPS = 10
STEP_S = 0.02


def main() -> None:
    wrong, at = sys.argv[1], int(sys.argv[2])
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradients = torch.ones(64)
    for step in range(STEPS):
        time.sleep(STEP_S)
        if step == at and rank == 1:
            if wrong == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if wrong == "raises":
                raise RuntimeError("a bad batch")
            if wrong == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
        if step == at and rank == 0 and wrong == "alone":
            dist.barrier()
        dist.all_reduce(gradients)
    dist.destroy_process_group()


main()
