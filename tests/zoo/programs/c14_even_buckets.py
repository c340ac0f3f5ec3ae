"""Multi-scale image training: every batch holds photos of one aspect ratio, and all ranks end an epoch together.

torchrun --standalone --nproc-per-node 4 c14_even_buckets.py
"""

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

import ncclwatch

PHOTOS = 1600
BATCH_SIZE = 8
EPOCHS = 2
LOG_EVERY = 5

# Aspect ratio (height / width) and the size at which photos of that shape are trained.
BUCKETS = {0.5: (32, 64), 0.75: (40, 56), 1.0: (48, 48), 1.33: (56, 40), 2.0: (64, 32)}


class Photos(Dataset[Tensor]):
    """Photos of many shapes; each is resized to the bucket nearest to its own shape."""

    def __init__(self, count: int, seed: int = 9) -> None:
        generator = torch.Generator().manual_seed(seed)
        shapes = torch.randint(480, 1440, (count, 2), generator=generator)
        self.ratios = [self._nearest(h / w) for h, w in shapes.tolist()]

    def __len__(self) -> int:
        return len(self.ratios)

    def __getitem__(self, index: int) -> Tensor:
        height, width = BUCKETS[self.ratios[index]]
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, height, width, generator=generator)

    @staticmethod
    def _nearest(ratio: float) -> float:
        return min(BUCKETS, key=lambda known: abs(known - ratio))


class AspectRatioBatchSampler(BatchSampler):
    """Collect the rank's photos by aspect ratio and yield a batch when a bucket is full."""

    def __init__(self, sampler: DistributedSampler[Tensor], photos: Photos, batch_size: int) -> None:
        super().__init__(sampler, batch_size, drop_last=True)
        self.photos = photos

    def __iter__(self) -> Iterator[list[int]]:
        buckets: dict[float, list[int]] = defaultdict(list)
        for index in self.sampler:
            bucket = buckets[self.photos.ratios[index]]
            bucket.append(index)
            if len(bucket) == self.batch_size:
                yield bucket[:]
                bucket.clear()


class Denoiser(nn.Module):
    """A small fully convolutional network, so that it takes every image size."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.encode = nn.Conv2d(3, width, 3, padding=1)
        self.middle = nn.Sequential(
            nn.GroupNorm(4, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.SiLU(),
        )
        self.decode = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, noisy: Tensor) -> Tensor:
        hidden = self.encode(noisy)
        return self.decode(hidden + self.middle(hidden))


def train_one_epoch(
    model: nn.Module, loader: DataLoader[Tensor], optimizer: torch.optim.Optimizer, epoch: int
) -> float:
    total = 0.0
    for step, images in enumerate(ncclwatch.even_batches(loader)):
        noise = torch.randn_like(images)
        loss = F.mse_loss(model(images + 0.5 * noise), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if dist.get_rank() == 0 and step % LOG_EVERY == 0:
            size = "x".join(str(side) for side in images.shape[-2:])
            print(f"epoch {epoch}  step {step:3d}/{len(loader)}  {size}  loss {loss.item():.4f}", flush=True)
    return total


def save_checkpoint(model: nn.Module, epoch: int, directory: Path) -> None:
    torch.save(model.state_dict(), directory / f"epoch-{epoch}.pt")


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)

    photos = Photos(PHOTOS)
    sampler = DistributedSampler(photos, shuffle=True)
    batches = AspectRatioBatchSampler(sampler, photos, BATCH_SIZE)
    loader = DataLoader(photos, batch_sampler=batches)
    model = DistributedDataParallel(Denoiser())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    if rank == 0:
        print(f"{dist.get_world_size()} ranks, {PHOTOS} photos in {len(BUCKETS)} aspect ratios", flush=True)

    with tempfile.TemporaryDirectory(prefix=f"denoiser-{os.getpid()}-") as directory:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            train_one_epoch(model, loader, optimizer, epoch)
            dist.barrier()
            if rank == 0:
                save_checkpoint(model.module, epoch, Path(directory))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
