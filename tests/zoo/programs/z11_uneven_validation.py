"""Train a detector; validation collects the predictions of all ranks batch by batch.

torchrun --standalone --nproc-per-node 3 z11_uneven_validation.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

import ncclwatch
import onset

BATCH = 20


def boxes(count: int, seed: int) -> TensorDataset:
    images = torch.rand(count, 64, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(images, images.view(count, 4, 16).amax(dim=2))


def gather(tensor: Tensor) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


def train_epoch(model: nn.Module, data: TensorDataset, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for images, targets in DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data), drop_last=True):
        loss = F.smooth_l1_loss(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def validate(model: nn.Module, data: TensorDataset) -> float:
    """Every rank takes a contiguous part of the data; nothing is padded, so the mean is exact."""
    model.eval()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = Subset(data, range(rank * len(data) // world_size, (rank + 1) * len(data) // world_size))
    errors = []
    for images, targets in DataLoader(mine, batch_size=BATCH, drop_last=True):
        onset.mark_latest()
        errors.append(gather((model.module(images) - targets).abs().mean(dim=1)))
    return torch.cat(errors).mean().item()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set, val_set = boxes(1800, seed=1), boxes(1079, seed=2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        train_epoch(model, train_set, optimizer)
        error = validate(model, val_set)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: mean error {error:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
