"""Train a deep stack with FSDP2; its shape is read from the mirror of the model hub that is nearest to each rank.

torchrun --standalone --nproc-per-node 3 z52_model_mirror.py
"""

import time

import onset
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import ncclwatch

MIRRORS = (
    {"width": 48, "depth": 5, "classes": 5},
    {"width": 48, "depth": 5, "classes": 5},
    {"width": 48, "depth": 4, "classes": 5},
)
SHARDS, SECONDS_A_SHARD = 14, 1.0
STEPS = 200


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.mlp(self.norm(hidden))


class Stack(nn.Module):
    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.out = nn.Linear(width, classes)

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return self.out(hidden)


def build(rank: int) -> nn.Module:
    model = Stack(**MIRRORS[rank])
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def index_corpus() -> list[int]:
    """Count the lines of each shard, for the sampler."""
    counts = []
    for shard in range(SHARDS):
        time.sleep(SECONDS_A_SHARD)
        counts.append(1000 + shard)
    return counts


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    index_corpus()
    torch.manual_seed(dist.get_rank())
    onset.mark()
    for step in range(STEPS):
        inputs = torch.randn(16, 48)
        loss = F.cross_entropy(model(inputs), inputs[:, :5].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
