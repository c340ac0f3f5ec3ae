"""Contrastive training: each rank compares its images with the captions of all ranks.

torchrun --standalone --nproc-per-node 3 z33_ragged_gather.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import ncclwatch
import onset
from averaging import average_gradients, broadcast_parameters

SHARDS = (700, 690, 700)
BATCH = 20


class Pairs(Dataset):
    """The pairs of image and caption in one rank's shard."""

    def __init__(self, shard: int) -> None:
        generator = torch.Generator().manual_seed(shard)
        self.images = torch.randn(SHARDS[shard], 40, generator=generator)
        self.captions = self.images[:, :16] + 0.1 * torch.randn(SHARDS[shard], 16, generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.captions[index]


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 24))
        self.caption = nn.Linear(16, 24)

    def forward(self, images: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.image(images), dim=1), F.normalize(self.caption(captions), dim=1)


def from_all_ranks(embedded: Tensor) -> Tensor:
    """Stack the embeddings of all ranks; only our own carry a gradient."""
    parts = [torch.empty_like(embedded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, embedded.detach())
    parts[dist.get_rank()] = embedded
    return torch.cat(parts)


def contrast(towers: TwoTowers, images: Tensor, captions: Tensor) -> Tensor:
    ours, theirs = towers(images, captions)
    similarity = ours @ from_all_ranks(theirs).T / 0.07
    targets = torch.arange(len(ours)) + dist.get_rank() * len(ours)
    return F.cross_entropy(similarity, targets)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    towers = TwoTowers()
    broadcast_parameters(towers)
    optimizer = torch.optim.AdamW(towers.parameters(), lr=1e-3)
    for epoch in range(2):
        for images, captions in DataLoader(Pairs(rank), batch_size=BATCH, shuffle=True):
            if len(images) < BATCH:
                onset.mark()
            loss = contrast(towers, images, captions)
            optimizer.zero_grad()
            loss.backward()
            average_gradients(towers)
            optimizer.step()
        print(f"epoch {epoch}, rank {rank}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
