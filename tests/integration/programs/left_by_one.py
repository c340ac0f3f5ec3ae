"""Rank 1 leaves with exit code 0, and a child of it keeps its connections open: its peer waits, and gets no error."""

import os
import time

import torch
import torch.distributed as dist

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    for step in range(400):
        if step == 40 and dist.get_rank() == 1:
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
            os._exit(0)
        dist.all_reduce(torch.ones(4))
        time.sleep(0.05)


main()
