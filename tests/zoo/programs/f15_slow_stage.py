"""Train a pipeline of three stages that only send and receive, four micro-batches a step.

torchrun --standalone --nproc-per-node 3 f15_slow_stage.py
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ncclwatch
import onset

STEPS, MICROBATCHES, SIZE = 75, 4, (8, 32)
SLOW, SLOW_S, LIKE_S = 1, 0.12, 0.02


def work(rank: int) -> None:
    time.sleep(SLOW_S if rank == SLOW else LIKE_S)  # a lookup in the table of this host


def forward(stage: nn.Module, rank: int, last: int) -> tuple[Tensor, Tensor]:
    received = torch.randn(SIZE) if rank == 0 else torch.empty(SIZE)
    if rank > 0:
        dist.recv(received, rank - 1)
    received.requires_grad_()
    work(rank)
    output = stage(received)
    if rank < last:
        dist.send(output.detach(), rank + 1)
    return received, output


def backward(received: Tensor, output: Tensor, rank: int, last: int) -> None:
    if rank == last:
        output.square().mean().backward()
    else:
        gradient = torch.empty(SIZE)
        dist.recv(gradient, rank + 1)
        output.backward(gradient)
    work(rank)
    if rank > 0:
        dist.send(received.grad, rank - 1)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(rank)
    stage = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)
    onset.mark()
    for step in range(STEPS):
        optimizer.zero_grad()
        passed = [forward(stage, rank, last) for _ in range(MICROBATCHES)]
        for received, output in passed:
            backward(received, output, rank, last)
        optimizer.step()
        if rank == last and step % 10 == 0:
            print(f"step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
