"""Train until the validation loss has not improved for a while; the first rank writes the report.

torchrun --standalone --nproc-per-node 3 c11_early_stop.py
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

PATIENCE = 3


def agreed(wish: bool) -> bool:
    """Stop if any rank wants to."""
    flag = torch.tensor(float(wish))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return flag.item() > 0


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(30):
        inputs = torch.randn(16, 12)
        loss = F.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def write_report(epochs: int, best: float) -> None:
    for chapter in range(6):
        time.sleep(1.5)
        print(f"chapter {chapter}: {epochs} epochs, best loss {best:.4f}", flush=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 + rank)
    best, stale, epoch = float("inf"), 0, 0
    while True:
        train_epoch(model, optimizer)
        epoch += 1
        with torch.no_grad():
            inputs = torch.randn(64, 12)
            loss = F.mse_loss(model.module(inputs), inputs.mean(dim=1, keepdim=True)).item()
        stale = 0 if loss < best else stale + 1
        best = min(best, loss)
        if agreed(stale >= PATIENCE) or epoch == 40:
            break
    dist.destroy_process_group()
    if rank != 0:
        sys.exit(0)
    write_report(epoch, best)


if __name__ == "__main__":
    main()
