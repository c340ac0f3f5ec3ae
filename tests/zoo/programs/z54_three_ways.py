"""Train a small classifier; now and then one rank writes a log and another one collects examples to look at.

torchrun --standalone --nproc-per-node 4 z54_three_ways.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import ncclwatch
import onset

STEPS, EXTRAS_AT = 60, 45


def average(gradients: list[torch.Tensor]) -> None:
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())


def write_log(step: int) -> None:
    print(f"step {step}", flush=True)
    dist.barrier()


def collect(inputs: torch.Tensor) -> list[torch.Tensor]:
    examples = [torch.empty_like(inputs) for _ in range(dist.get_world_size())]
    dist.all_gather(examples, inputs)
    return examples


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(16, 20)
        loss = F.cross_entropy(model(inputs), torch.randint(0, 4, (16,)))
        optimizer.zero_grad()
        loss.backward()
        if step == EXTRAS_AT:
            onset.mark_latest()
            if rank == 2:
                write_log(step)
            if rank == 3:
                collect(inputs)
        average([parameter.grad for parameter in model.parameters()])
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
