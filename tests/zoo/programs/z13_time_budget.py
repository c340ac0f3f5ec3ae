"""Train for a given time and average the results of all ranks in the end.

torchrun --standalone --nproc-per-node 4 z13_time_budget.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

BUDGET_S = 3.0


class Budget:
    """The time that is left for training; reading the data counts as well."""

    def __init__(self, seconds: float, spent: float) -> None:
        self.ends = time.monotonic() + seconds - spent

    def used_up(self) -> bool:
        return time.monotonic() >= self.ends


def read_data(rank: int) -> tuple[torch.Tensor, float]:
    began = time.monotonic()
    data = torch.randn(2000, 50, generator=torch.Generator().manual_seed(rank))
    if rank == 2:
        time.sleep(0.4)  # the share of this host is on the slower disk
    return data, time.monotonic() - began


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data, spent = read_data(rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    budget, steps, loss = Budget(BUDGET_S, spent), 0, torch.zeros(())
    while True:
        if budget.used_up():
            break
        batch = data[torch.randint(0, len(data), (32,))]
        loss = F.mse_loss(model(batch), batch.median(dim=1, keepdim=True).values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        time.sleep(0.01)
    onset.mark()
    results = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(results, torch.tensor([float(steps), loss.item()]))
    if rank == 0:
        print("\n".join(f"{int(count)} steps, loss {last:.4f}" for count, last in results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
