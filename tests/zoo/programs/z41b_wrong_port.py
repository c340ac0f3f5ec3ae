"""Several trainings share a machine; each pair of GPUs has a rendezvous port of its own.

torchrun --standalone --nproc-per-node 3 z41b_wrong_port.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

GPUS_PER_TRAINING = 2


def choose_port() -> None:
    """Keep trainings on one machine apart by their ports."""
    slot = int(os.environ["LOCAL_RANK"]) // GPUS_PER_TRAINING
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + slot)


def train(model: nn.Module, steps: int = 100) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        loss = F.cross_entropy(model(torch.randn(16, 32)), torch.randint(0, 4, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def main() -> None:
    ncclwatch.attach()
    choose_port()
    onset.mark_latest()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train(DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
