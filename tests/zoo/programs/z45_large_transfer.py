"""Average a large model once per round and let the machine cool down in between.

torchrun --standalone --nproc-per-node 2 z45_large_transfer.py
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

WEIGHTS = 50_000_000  # 200 MB of float32
ROUNDS = 2
COOL_DOWN_S = 15.0


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 60) -> None:
    for _ in range(steps):
        inputs = torch.randn(64, 32)
        loss = F.mse_loss(model(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def average(weights: torch.Tensor) -> None:
    dist.all_reduce(weights)
    weights /= dist.get_world_size()


def cool_down(number: int) -> None:
    print(f"rank {dist.get_rank()} round {number}: cooling down", flush=True)
    time.sleep(COOL_DOWN_S)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    callbacks: list[Callable[[int], None]] = [cool_down]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weights = torch.full((WEIGHTS,), float(dist.get_rank()))

    for number in range(ROUNDS):
        train(model, optimizer)
        average(weights)
        for callback in callbacks:
            callback(number)
    train(model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
