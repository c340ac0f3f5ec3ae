"""Train on each rank alone, and average the weights with each other rank now and then, in groups of two.

torchrun --standalone --nproc-per-node 3 z59_gossip.py
"""

from itertools import combinations

import torch
import torch.distributed as dist
from torch import nn

import ncclwatch
import onset

STEPS, AVERAGE_AT = 60, 20


def pairs() -> list[dist.ProcessGroup]:
    onset.mark_latest()
    rank = dist.get_rank()
    return [dist.new_group(list(pair)) for pair in combinations(range(dist.get_world_size()), 2) if rank in pair]


def average(model: nn.Module, groups: list[dist.ProcessGroup]) -> None:
    for group in groups:
        for parameter in model.parameters():
            dist.all_reduce(parameter.data, group=group)
            parameter.data.div_(2)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(1)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(16, 20)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if step == AVERAGE_AT:
            average(model, pairs())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
