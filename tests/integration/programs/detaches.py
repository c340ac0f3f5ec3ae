"""Two ranks that train; rank 1 detaches on its way, and goes on unwatched until it is ended."""

import time

import torch
import torch.distributed as dist

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    step = 0
    while True:
        dist.all_reduce(torch.ones(4))
        step += 1
        if step == 20 and dist.get_rank() == 1:
            ncclwatch.detach()
        time.sleep(0.05)


main()
