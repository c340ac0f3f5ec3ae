"""Train a small tower of residual blocks whose norms share their statistics over all ranks.

torchrun --standalone --nproc-per-node 3 c20_shared_norm.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

STEPS, PREVIEW_EVERY = 160, 40


class SharedNorm(nn.Module):
    """Normalises by mean and variance of all ranks in training, by running ones otherwise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            moments = torch.stack((hidden.detach().mean(0), hidden.detach().square().mean(0)))
            everyones = [torch.empty_like(moments) for _ in range(dist.get_world_size())]
            dist.all_gather(everyones, moments)
            mean, square = torch.stack(everyones).mean(0)
            variance = square - mean.square()
            self.mean.lerp_(mean, 0.1)
            self.variance.lerp_(variance, 0.1)
        else:
            mean, variance = self.mean, self.variance
        return self.scale * (hidden - mean) / (variance + 1e-5).sqrt()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.norm = SharedNorm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + F.gelu(self.norm(self.mix(hidden)))


class Tower(nn.Module):
    def __init__(self, width: int = 24, depth: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def preview(tower: Tower, rows: Tensor) -> None:
    """Print what the tower makes of a few rows, in the mode it is to be used in."""
    modes = {module: module.training for module in tower.modules()}
    tower.eval()
    with torch.inference_mode():
        for _ in range(150):
            guess = tower(rows.repeat(256, 1)).argmax(dim=1)
    print("preview:", guess[:4].tolist(), flush=True)
    for module, training in modes.items():
        module.training = training


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    tower = DistributedDataParallel(Tower(), broadcast_buffers=False)
    tower.module.blocks[0].norm.eval()
    optimizer = torch.optim.AdamW(tower.parameters(), lr=1e-3)
    for step in range(1, STEPS + 1):
        rows, labels = torch.randn(16, 24), torch.randint(0, 4, (16,))
        loss = F.cross_entropy(tower(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % PREVIEW_EVERY == 0 and rank == 0:
            preview(tower.module, rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
