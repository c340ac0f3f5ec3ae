"""A short healthy job: attach, a few steps, the end. Prints the sum it computed.

python plain.py [ddp]: DDP and an optimizer import torch._dynamo, which takes as long as all else here.
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ncclwatch


def with_ddp() -> torch.nn.Module:
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    return model


def by_hand() -> torch.nn.Module:
    model = torch.nn.Linear(8, 1)
    for _ in range(5):
        model(torch.ones(4, 8)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.01 * parameter.grad
            parameter.grad = None
    return model


ncclwatch.attach()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = with_ddp() if sys.argv[1:] == ["ddp"] else by_hand()
dist.barrier()
print(f"done {sum(p.sum().item() for p in model.parameters()):.4f}", flush=True)
dist.destroy_process_group()
