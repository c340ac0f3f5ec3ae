"""Train on the recordings of three sites, one a rank.

torchrun --standalone --nproc-per-node 3 z48_site_recordings.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import ncclwatch
import onset

RECORDINGS = (2000, 1880, 2000)  # of each site
BATCH_SIZE = 10
EPOCHS = 2
SECONDS_A_BATCH = 0.08  # to decode and augment


def recordings(rank: int) -> DataLoader:
    """Each rank trains on what its own site has recorded."""
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(RECORDINGS[rank], 24, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.norm(dim=1, keepdim=True)), batch_size=BATCH_SIZE)


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    total = 0.0
    for inputs, targets in loader:
        time.sleep(SECONDS_A_BATCH)
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = recordings(rank)
    for epoch in range(EPOCHS):
        total = train(model, loader, optimizer)
        onset.mark()
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch}: loss {total:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
