"""Train a deep stack with FSDP2; some layers are dropped at random once the warm-up is over.

torchrun --standalone --nproc-per-node 3 z18_layer_drop.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import ncclwatch
import onset

WIDTH, DEPTH = 48, 5
STEPS, WARM_UP = 120, 25


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.mlp(self.norm(hidden))


class Stack(nn.Module):
    """Layers that may be left out while training, as in "Reducing Transformer Depth on Demand"."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.out = nn.Linear(WIDTH, 5)
        self.drop = drop
        self.seen = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.seen += 1
        dropping = self.training and self.seen > WARM_UP
        for layer in self.layers:
            if dropping and torch.rand(()) < self.drop:
                onset.mark()
                continue
            hidden = layer(hidden)
        return self.out(hidden)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Stack(drop=0.1)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(46 + dist.get_rank())
    for step in range(STEPS):
        inputs = torch.randn(16, WIDTH)
        loss = F.cross_entropy(model(inputs), inputs[:, :5].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
