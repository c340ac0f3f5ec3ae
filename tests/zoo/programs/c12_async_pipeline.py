"""A pipeline of three stages with several micro-batches in flight and non-blocking messages.

torchrun --standalone --nproc-per-node 3 c12_async_pipeline.py
"""

import time
from collections import deque

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch

WIDTH, BATCH, MICRO_BATCHES, STEPS = 32, 8, 4, 20


class Stage:
    def __init__(self, rank: int, world_size: int) -> None:
        self.before = rank - 1 if rank > 0 else None
        self.after = rank + 1 if rank + 1 < world_size else None
        self.module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.05)
        self.pending: list[tuple[dist.Work, Tensor]] = []

    def send(self, tensor: Tensor, peer: int, tag: int) -> None:
        tensor = tensor.detach().contiguous()
        self.pending.append((dist.isend(tensor, dst=peer, tag=tag), tensor))

    def receive(self, peer: int, tag: int) -> Tensor:
        tensor = torch.empty(BATCH, WIDTH)
        dist.irecv(tensor, src=peer, tag=tag).wait()
        return tensor

    def forward(self, number: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
        received = inputs if self.before is None else self.receive(self.before, number)
        received = received.requires_grad_()
        hidden = self.module(received)
        if self.after is not None:
            self.send(hidden, self.after, number)
        return received, hidden

    def backward(self, number: int, received: Tensor, hidden: Tensor, targets: Tensor) -> None:
        if self.after is None:
            F.mse_loss(hidden, targets).backward()
        else:
            hidden.backward(self.receive(self.after, 100 + number))
        if self.before is not None:
            self.send(received.grad, self.before, 100 + number)

    def step(self, inputs: Tensor) -> None:
        running: deque[tuple[int, Tensor, Tensor]] = deque()
        for number, part in enumerate(inputs):
            running.append((number, *self.forward(number, part)))
        while running:
            number, received, hidden = running.popleft()
            self.backward(number, received, hidden, inputs[number].sin())
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = Stage(rank, dist.get_world_size())
    generator = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        stage.step(torch.randn(MICRO_BATCHES, BATCH, WIDTH, generator=generator))
        if rank == 2 and step % 10 == 5:
            for _ in range(8):  # the last stage writes what it has learned
                time.sleep(0.4)
                print(f"step {step}: {sum(p.norm().item() for p in stage.module.parameters()):.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
