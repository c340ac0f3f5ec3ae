"""Train a pipeline whose last stage has the output layer of a vocabulary, four micro-batches a step.

torchrun --standalone --nproc-per-node 3 c24_heavy_last_stage.py
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ncclwatch

BUDGET_S, MICROBATCHES, SIZE = 40.0, 4, (16, 128)
HIDDEN, VOCABULARY, LAYERS = 128, 2_000, 6


def forward(stage: nn.Module, rank: int, last: int) -> tuple[Tensor, Tensor]:
    received = torch.randn(SIZE) if rank == 0 else torch.empty(SIZE)
    if rank > 0:
        dist.recv(received, rank - 1)
    received.requires_grad_()
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
    if rank > 0:
        dist.send(received.grad, rank - 1)


def pass_on(over: Tensor, rank: int, last: int, passed_s: float) -> None:
    """The first stage says when it is over, each tells the next one."""
    if rank == 0:
        over.fill_(passed_s > BUDGET_S)
    else:
        dist.recv(over, rank - 1)
    if rank < last:
        dist.send(over, rank + 1)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(rank)
    layers = [nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()) for _ in range(LAYERS)]
    head = [nn.Linear(HIDDEN, VOCABULARY)] if rank == last else []
    stage = nn.Sequential(*layers, *head)
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)
    began, step, over = time.monotonic(), 0, torch.zeros(1)
    while not over.item():
        optimizer.zero_grad()
        passed = [forward(stage, rank, last) for _ in range(MICROBATCHES)]
        for received, output in passed:
            backward(received, output, rank, last)
        optimizer.step()
        if rank == last and step % 10 == 0:
            print(f"step {step}", flush=True)
        pass_on(over, rank, last, time.monotonic() - began)
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
