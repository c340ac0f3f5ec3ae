"""Train on a list of files, split by hand between the ranks.

torchrun --standalone --nproc-per-node 3 f05_exit0.py
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

FILES = 200
STEPS_PER_FILE = 2


def files_of(rank: int, world_size: int) -> list[int]:
    """The first ranks take larger parts, since they have the faster disks."""
    share = FILES // world_size
    begin = rank * share
    return list(range(FILES))[begin : begin + share - 20 * rank]


def train_on(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    generator = torch.Generator().manual_seed(number)
    for _ in range(STEPS_PER_FILE):
        inputs = torch.randn(24, 20, generator=generator)
        loss = F.mse_loss(model(inputs), inputs.abs())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 80), nn.ReLU(), nn.Linear(80, 20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in files_of(dist.get_rank(), dist.get_world_size()):
        train_on(number, model, optimizer)
    print(f"rank {dist.get_rank()} is done", flush=True)
    onset.mark()
    sys.exit(0)


if __name__ == "__main__":
    main()
