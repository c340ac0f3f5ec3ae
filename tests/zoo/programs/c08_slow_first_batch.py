"""Train on an archive; before its first batch a loader reads the whole index of its part.

torchrun --standalone --nproc-per-node 2 c08_slow_first_batch.py
"""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import ncclwatch

BATCHES = 80


class Archive(IterableDataset):
    """One part of the data; the index comes in blocks from a disk that is far away."""

    def __init__(self, rank: int, blocks: int) -> None:
        self.rank = rank
        self.blocks = blocks
        self.file = Path(tempfile.gettempdir()) / f"index-{rank}-{os.getpid()}"
        self.file.write_bytes(os.urandom(1 << 20))

    def read_index(self) -> int:
        checksum = 0
        for _ in range(self.blocks):
            checksum ^= sum(self.file.read_bytes())
            time.sleep(1.6)
        return checksum

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.read_index() % 1000)
        for _ in range(BATCHES):
            inputs = torch.randn(16, 24, generator=generator)
            yield inputs, inputs.abs().sum(dim=1, keepdim=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    archive = Archive(rank, blocks=1 if rank == 0 else 8)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(archive, batch_size=None, num_workers=1)
    for step, (inputs, targets) in enumerate(loader):
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
