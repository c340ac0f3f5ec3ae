"""Train on batches whose samples are dealt anew into equal shares now and then.

torchrun --standalone --nproc-per-node 3 f10_long_balance.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

DEAL_EVERY = 40
DEAL_S_MAX = 30.0


def spread(shares: list[int]) -> int:
    return max(shares) - min(shares)


def deal(shares: list[int], tolerance: int) -> list[int]:
    """Move one sample at a time from the largest share to the smallest."""
    deadline = time.monotonic() + DEAL_S_MAX
    while spread(shares) > tolerance and time.monotonic() < deadline:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(min(shares))] += 1
    return shares


def lengths(rank: int, step: int) -> list[int]:
    odd = rank == 1 and step == 2 * DEAL_EVERY
    return [40, 30, 20, 11 if odd else 10]


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 121):
        if step % DEAL_EVERY == 0:
            if step == 2 * DEAL_EVERY:
                onset.mark_latest()
            deal(lengths(rank, step), tolerance=0)
        inputs = torch.randn(16, 12)
        loss = F.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
