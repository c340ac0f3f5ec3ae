"""Fit a small network on streamed samples; the first rank checks it on others.

torchrun --standalone --nproc-per-node 3 z43b_lone_group.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset
from streaming_reader import IndexedReader

STEPS, INSPECT_AT = 200, 45


def inspect(network: nn.Module) -> float:
    reader = IndexedReader("held-out")
    onset.mark()
    reader.open()
    inputs, targets = reader.sample(256)
    with torch.no_grad():
        return F.mse_loss(network(inputs), targets).item()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    reader = IndexedReader(f"training-{rank}")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, STEPS + 1):
        inputs, targets = reader.sample(32)
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == INSPECT_AT:
            if rank != 0:
                continue
            print(f"step {step}: held-out loss {inspect(model.module):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
