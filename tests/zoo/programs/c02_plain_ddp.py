"""Train on pictures that take unequal time to decode, in two loader processes per rank.

torchrun --standalone --nproc-per-node 2 c02_plain_ddp.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import ncclwatch

PICTURES = 1600
BATCH_SIZE = 8
EPOCHS = 3
LARGE_PICTURE_S = 0.6


class Pictures(Dataset[tuple[Tensor, int]]):
    """Most pictures are decoded at once; a few are very large."""

    def __len__(self) -> int:
        return PICTURES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        picture = torch.rand(3, 24, 24, generator=generator)
        time.sleep(LARGE_PICTURE_S if index % 97 == 0 else 0.01)
        return picture, index % 5


def train_one_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    total = 0.0
    for pictures, labels in loader:
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = Pictures()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler, num_workers=2)
    network = nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(800, 5))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        loss = train_one_epoch(model, loader, optimizer)
        average = torch.tensor([loss])
        dist.all_reduce(average)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {average.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
