"""Three pipeline stages, trained one batch at a time and evaluated now and then.

torchrun --standalone --nproc-per-node 3 z30_three_stages.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset

WIDTH, BATCH, CLASSES = 48, 32, 6
STEPS, EVALUATE_EVERY = 160, 35


class Stage:
    """One part of the network and its place in the line."""

    def __init__(self, module: nn.Module, rank: int, world_size: int) -> None:
        self.module = module
        self.previous = rank - 1
        self.next = rank + 1
        self.first, self.last = rank == 0, rank == world_size - 1
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.05)

    def train(self, inputs: Tensor, labels: Tensor) -> float:
        received = inputs
        if not self.first:
            received = torch.empty(BATCH, WIDTH)
            dist.recv(received, src=self.previous)
            received.requires_grad_()
        hidden = self.module(received)
        self.optimizer.zero_grad()
        loss = 0.0
        if self.last:
            error = F.cross_entropy(hidden, labels)
            error.backward()
            loss = error.item()
        else:
            dist.send(hidden.detach(), dst=self.next)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, src=self.next)
            hidden.backward(gradient)
        if not self.first:
            dist.send(received.grad, dst=self.previous)
        self.optimizer.step()
        return loss

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, labels: Tensor) -> float:
        if self.first:
            dist.send(self.module(inputs), dst=self.next)
            return 0.0
        hidden = torch.empty(BATCH, WIDTH)
        if self.last:
            dist.irecv(hidden, src=0).wait()
            return (self.module(hidden).argmax(dim=1) == labels).float().mean().item()
        dist.irecv(hidden, src=self.previous).wait()
        dist.send(self.module(hidden), dst=self.next)
        return 0.0


def part(rank: int) -> nn.Module:
    return (
        nn.Sequential(nn.Linear(20, WIDTH), nn.ReLU()),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
        nn.Linear(WIDTH, CLASSES),
    )[rank]


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = Stage(part(rank), rank, dist.get_world_size())
    generator = torch.Generator().manual_seed(3)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(BATCH, 20, generator=generator)
        labels = inputs[:, :CLASSES].argmax(dim=1)
        loss = stage.train(inputs, labels)
        if step % EVALUATE_EVERY == 0:
            onset.mark()
            accuracy = stage.evaluate(inputs, labels)
            if stage.last:
                print(f"step {step}: loss {loss:.3f}, accuracy {accuracy:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
