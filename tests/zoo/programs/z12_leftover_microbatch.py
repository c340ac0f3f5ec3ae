"""Accumulate gradients over micro-batches and synchronise only with the last of each window.

torchrun --standalone --nproc-per-node 2 z12_leftover_microbatch.py
"""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import ncclwatch
import onset

WINDOW = 4
DOCUMENTS = {0: 1920, 1: 1930}


class Accumulating:
    """Trains a model on windows of micro-batches."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        self.pending = 0

    def micro_step(self, inputs: torch.Tensor, targets: torch.Tensor, last: bool) -> None:
        self.pending += 1
        full = self.pending == WINDOW or last
        with contextlib.nullcontext() if full else self.model.no_sync():
            loss = F.mse_loss(self.model(inputs), targets) / WINDOW
            loss.backward()
        if full:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.pending = 0


def documents(rank: int) -> TensorDataset:
    inputs = torch.randn(DOCUMENTS[rank], 30, generator=torch.Generator().manual_seed(rank))
    return TensorDataset(inputs, inputs.softmax(dim=1).amax(dim=1, keepdim=True))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(documents(rank), batch_size=12, shuffle=True)
    trainer = Accumulating(DistributedDataParallel(nn.Sequential(nn.Linear(30, 60), nn.Tanh(), nn.Linear(60, 1))))
    for epoch in range(4):
        for number, (inputs, targets) in enumerate(loader, start=1):
            trainer.micro_step(inputs, targets, last=number == len(loader))
        onset.mark()
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch}: {number} micro-batches", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
