"""Train an autoencoder whose cache grows until the host is out of memory.

torchrun --standalone --nproc-per-node 3 f02_sigkill.py
"""

import os
import signal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset


class Cache:
    """Remembers encoded batches; the kernel kills the process that holds too many."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.batches: list[Tensor] = []

    def add(self, batch: Tensor) -> None:
        self.batches.append(batch)
        if len(self.batches) > self.limit:
            onset.mark()
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    cache = Cache(limit=60 if rank == 2 else 10_000)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(50, 12), nn.Tanh(), nn.Linear(12, 50)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(300):
        inputs = torch.randn(32, 50)
        decoded = model(inputs)
        loss = F.mse_loss(decoded, inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cache.add(decoded.detach())
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
