"""Train on images and, where a sample has one, its caption; each rank reads its own archive.

torchrun --standalone --nproc-per-node 2 z22_unused_branch.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

BATCH, BATCHES = 16, 30


class Archive:
    """Batches of (image, caption, label); captions were lost for some files."""

    def __init__(self, rank: int) -> None:
        self.generator = torch.Generator().manual_seed(rank)
        self.without_caption = {0: (), 1: (2 * BATCHES - 1,)}[rank]
        self.position = 0

    def epoch(self):
        for _ in range(BATCHES):
            image = torch.randn(BATCH, 32, generator=self.generator)
            caption = torch.randn(BATCH, 12, generator=self.generator)
            label = (image[:, 0] + caption[:, 0] > 0).long()
            yield image, None if self.position in self.without_caption else caption, label
            self.position += 1


class Fusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.caption = nn.Sequential(nn.Linear(12, 64), nn.ReLU())
        self.head = nn.Linear(64, 2)

    def forward(self, image: Tensor, caption: Tensor | None) -> Tensor:
        hidden = self.image(image)
        if caption is not None:
            hidden = hidden + self.caption(caption)
        return self.head(hidden)


def fit_epoch(model: nn.Module, archive: Archive, optimizer: torch.optim.Optimizer) -> float:
    total = 0.0
    for image, caption, label in archive.epoch():
        if caption is None:
            onset.mark()
        loss = F.cross_entropy(model(image, caption), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / BATCHES


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    archive = Archive(dist.get_rank())
    model = DistributedDataParallel(Fusion(), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(4):
        loss = fit_epoch(model, archive, optimizer)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
