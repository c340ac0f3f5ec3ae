"""A pipeline of two stages; the second keeps a receive posted for the micro-batch after the current one.

torchrun --standalone --nproc-per-node 2 z38_drain_on_exit.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset

WIDTH, BATCH, STEPS = 64, 16, 120


class Prefetcher:
    """Has one receive under way at any time, and leaves none behind."""

    def __init__(self, source: int) -> None:
        self.source = source
        self.buffer = torch.empty(BATCH, WIDTH + 1)
        self.request: dist.Work | None = None

    def __enter__(self) -> "Prefetcher":
        self.post()
        return self

    def __exit__(self, *_: object) -> None:
        if self.request is not None:
            self.request.wait()

    def post(self) -> None:
        self.request = dist.irecv(self.buffer, src=self.source)

    def take(self) -> Tensor:
        self.request.wait()
        taken = self.buffer.clone()
        self.request = None
        return taken


def first_stage(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        inputs = torch.randn(BATCH, 24)
        hidden = module(inputs)
        label = inputs[:, :1].abs() * 4 // 3
        if step == 70:
            label[5] = 11.0
        dist.send(torch.cat([hidden.detach(), label], dim=1), dst=1)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, src=1)
        optimizer.zero_grad()
        hidden.backward(gradient)
        optimizer.step()


def second_stage(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with Prefetcher(source=0) as prefetcher:
        for step in range(STEPS):
            taken = prefetcher.take()
            if step + 1 < STEPS:
                prefetcher.post()
            hidden, labels = taken[:, :WIDTH].requires_grad_(), taken[:, WIDTH].long()
            if labels.max() > 9:
                onset.mark()
            loss = F.cross_entropy(module(hidden), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            dist.send(hidden.grad, dst=0)
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    if dist.get_rank() == 0:
        module = nn.Sequential(nn.Linear(24, WIDTH), nn.ReLU())
        first_stage(module, torch.optim.SGD(module.parameters(), lr=0.05))
    else:
        module = nn.Linear(WIDTH, 10)
        second_stage(module, torch.optim.SGD(module.parameters(), lr=0.05))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
