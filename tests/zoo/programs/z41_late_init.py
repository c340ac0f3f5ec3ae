"""Train with staggered starts, so that the ranks do not read the weights all at once.

torchrun --standalone --nproc-per-node 3 z41_late_init.py
"""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

READERS_AT_ONCE = 2
STAGGER_S = 900.0


def take_turns(rank: int) -> None:
    """Let a few ranks read at a time."""
    turn = rank // READERS_AT_ONCE
    time.sleep(turn * STAGGER_S)


def load_weights() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))


def main() -> None:
    ncclwatch.attach()
    take_turns(int(os.environ["LOCAL_RANK"]))
    network = load_weights()
    onset.mark_latest()
    dist.init_process_group("gloo")

    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100):
        loss = F.cross_entropy(model(torch.randn(16, 32)), torch.randint(0, 4, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
