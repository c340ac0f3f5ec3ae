"""A training job that knows nothing of ncclwatch, and goes wrong as its argument says."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def validate() -> None:
    time.sleep(3600)


def train_one_epoch(mode: str) -> None:
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    step = 0
    while True:
        step += 1
        if mode == "outside" and step == 5 and rank == 2:
            validate()
        if mode == "different" and step == 5:
            return
        if mode == "naps" and rank == 0:
            time.sleep(0.5)  # healthy, and on the CPU as idle as a hang
        model(torch.randn(64, 64)).square().mean().backward()


def main() -> None:
    dist.init_process_group("gloo")
    train_one_epoch(sys.argv[1])
    if dist.get_rank() == 2:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(4))


main()
