"""A short healthy job: attach, a few steps, the end. Prints the sum it computed."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

ncclwatch.attach()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
dist.barrier()
print(f"done {sum(p.sum().item() for p in model.parameters()):.4f}", flush=True)
dist.destroy_process_group()
