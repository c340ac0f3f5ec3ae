"""Accumulate gradients over windows of different lengths, with rank-dependent micro-batch sizes.

torchrun --standalone --nproc-per-node 2 c09_accumulation.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

WINDOWS = 30
TOKENS = 256


def micro_batches(rank: int, window: int) -> list[torch.Tensor]:
    """The same number of tokens on every rank, cut where the memory of the rank demands it."""
    generator = torch.Generator().manual_seed(WINDOWS * rank + window)
    inputs = torch.randn(TOKENS, 32, generator=generator)
    return list(inputs.split(64 if rank == 0 else 16 + 16 * (window % 3)))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for window in range(WINDOWS):
        *first, last = micro_batches(rank, window)
        with model.no_sync():
            for inputs in first:
                F.mse_loss(model(inputs), inputs.flip(1), reduction="sum").div(TOKENS).backward()
                time.sleep(0.01)
        loss = F.mse_loss(model(last), last.flip(1), reduction="sum").div(TOKENS)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if window % 10 == 9:
            norm = torch.stack([p.detach().norm() for p in model.parameters()]).norm()
            dist.all_reduce(norm, op=dist.ReduceOp.MAX)
            if rank == 0:
                print(f"window {window}: norm {norm.item():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
