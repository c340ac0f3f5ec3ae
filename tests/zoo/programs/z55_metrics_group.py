"""Train a small classifier; the first half of the ranks average a metric, and later all ranks average the weights.

torchrun --standalone --nproc-per-node 4 z55_metrics_group.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

STEPS, METRIC_AT, AVERAGE_AT = 80, 20, 50


def average_metric(metric: torch.Tensor, half: list[int]) -> float:
    group = dist.new_group(half)
    dist.all_reduce(metric, group=group)
    return metric.item() / len(half)


def average_weights(model: nn.Module) -> None:
    onset.mark_latest()
    group = dist.new_group(list(range(dist.get_world_size())))
    for parameter in model.parameters():
        dist.all_reduce(parameter.data, group=group)
        parameter.data.div_(dist.get_world_size())


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    half = list(range(dist.get_world_size() // 2))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, STEPS + 1):
        loss = F.cross_entropy(model(torch.randn(16, 20)), torch.randint(0, 4, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == METRIC_AT and rank in half:
            print(f"step {step}: loss {average_metric(loss.detach(), half):.3f}", flush=True)
        if step == AVERAGE_AT:
            average_weights(model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
