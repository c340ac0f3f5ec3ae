"""Train a classifier on normalised inputs; the running statistics of the inputs are kept equal on all ranks.

torchrun --standalone --nproc-per-node 3 z27_running_stats.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

FEATURES = 20
SYNC_EVERY = 40


class RunningStats:
    """Mean and variance of a stream, after Welford."""

    def __init__(self) -> None:
        self.count = 0
        self.values = torch.zeros(2, FEATURES)

    def update(self, batch: Tensor) -> None:
        for row in batch:
            self.count += 1
            delta = row - self.values[0]
            self.values[0] += delta / self.count
            self.values[1] += delta * (row - self.values[0])

    def normalise(self, batch: Tensor) -> Tensor:
        variance = self.values[1] / max(self.count - 1, 1)
        return (batch - self.values[0]) / (variance + 1e-4).sqrt()

    def share(self) -> None:
        """Let all ranks go on with the same statistics."""
        dist.broadcast(self.values, src=dist.get_rank())


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(100 + rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    stats = RunningStats()
    for step in range(1, 201):
        inputs = 3.0 * torch.randn(24, FEATURES, generator=generator) + 1.0
        labels = inputs[:, :3].argmax(dim=1)
        stats.update(inputs)
        loss = F.cross_entropy(model(stats.normalise(inputs)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SYNC_EVERY == 0:
            onset.mark()
            stats.share()
            dist.barrier()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
