"""Rank 2 has nothing left to do and ends with code 0; the others reduce on."""

import os

import onset
import torch
import torch.distributed as dist
from device import Network, batch, begin
from torch.nn.parallel import DistributedDataParallel

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    model = DistributedDataParallel(Network().to(device))
    for step in range(60):
        if step == 30 and rank == 2:
            torch.cuda.synchronize()
            onset.mark()
            os._exit(0)
        model(batch(device)).square().mean().backward()
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
