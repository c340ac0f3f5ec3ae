"""Two pipeline stages: activations go forward, gradients come back.

torchrun --standalone --nproc-per-node 2 z28_send_send.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset

WIDTH = 128
BATCH = 64
STEPS = 120
AVERAGE_EVERY = 50


def first_stage_step(stage: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> None:
    activations = stage(inputs)
    dist.send(activations.detach(), dst=1)
    gradient = torch.empty_like(activations)
    dist.recv(gradient, src=1)
    optimizer.zero_grad()
    activations.backward(gradient)
    optimizer.step()


def last_stage_step(stage: nn.Module, optimizer: torch.optim.Optimizer, labels: Tensor) -> float:
    activations = torch.empty(BATCH, WIDTH)
    dist.recv(activations, src=0)
    activations.requires_grad_()
    loss = F.cross_entropy(stage(activations), labels)
    optimizer.zero_grad()
    loss.backward()
    dist.send(activations.grad, dst=0)
    optimizer.step()
    return loss.item()


def average_shared_weights(shared: Tensor, peer: int) -> None:
    """Both stages hold a copy of the tied projection; keep the two copies together."""
    theirs = torch.empty_like(shared)
    onset.mark()
    dist.send(shared, dst=peer)
    dist.recv(theirs, src=peer)
    shared.add_(theirs).div_(2)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    tied = nn.Linear(WIDTH, WIDTH, bias=False)
    if rank == 0:
        stage = nn.Sequential(nn.Linear(32, WIDTH), nn.ReLU(), tied)
    else:
        stage = nn.Sequential(tied, nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05)

    for step in range(1, STEPS + 1):
        inputs, labels = torch.randn(BATCH, 32), torch.randint(0, 10, (BATCH,))
        if rank == 0:
            first_stage_step(stage, optimizer, inputs)
        else:
            loss = last_stage_step(stage, optimizer, labels)
            if step % 10 == 0:
                print(f"step {step}: loss {loss:.4f}", flush=True)
        if step % AVERAGE_EVERY == 0:
            average_shared_weights(tied.weight.data, peer=1 - rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
