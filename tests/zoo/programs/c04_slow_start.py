"""Three ranks; one has far more data to index before it attaches and joins the others.

torchrun --standalone --nproc-per-node 3 c04_slow_start.py
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

INDEXING_S = {0: 0.5, 1: 15.0, 2: 0.5}


def build_index(rank: int) -> list[int]:
    """Sort the lengths of a rank's samples, batch after batch."""
    generator = torch.Generator().manual_seed(rank)
    index: list[int] = []
    deadline = time.monotonic() + INDEXING_S[rank]
    while time.monotonic() < deadline:
        lengths = torch.randint(1, 2048, (20_000,), generator=generator)
        index = torch.argsort(lengths).tolist()
    return index


def main() -> None:
    index = build_index(int(os.environ["RANK"]))
    ncclwatch.attach()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 8))
    for step in range(50):
        model(torch.full((4, 8), float(index[step]))).square().mean().backward()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
