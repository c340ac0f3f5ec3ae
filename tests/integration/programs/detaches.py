"""The last of two or three ranks detaches on its way, and goes on unwatched until it is ended.

Of three, the other two hang some time afterwards: each receives from the other one.
"""

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
        rank, size = dist.get_rank(), dist.get_world_size()
        if step == 20 and rank == size - 1:
            ncclwatch.detach()
        if step == 40 and size == 3 and rank < 2:
            dist.recv(torch.ones(4), src=1 - rank)
        time.sleep(0.05)


main()
