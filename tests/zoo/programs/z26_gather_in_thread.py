"""Train with DDP; statistics of all ranks are gathered beside the training.

torchrun --standalone --nproc-per-node 2 z26_gather_in_thread.py
"""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

REPORT_EVERY = 50


def summarise(values: list[float]) -> dict[str, float]:
    """Bootstrap an interval of the mean; how long this takes depends on the host."""
    losses = torch.tensor(values)
    rounds = 40 if dist.get_rank() == 0 else 400
    means = sorted(losses[torch.randint(len(losses), (len(losses),))].mean().item() for _ in range(rounds))
    return {"low": means[rounds // 20], "high": means[-rounds // 20], "at": time.time()}


def publish(values: list[float]) -> None:
    mine = summarise(values)
    everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, everyone)
    if everyone is not None:
        print("  ".join(f"{each['low']:.3f}..{each['high']:.3f}" for each in everyone), flush=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses: list[float] = []
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="statistics") as pool:
        for step in range(1, 1001):
            inputs = torch.randn(32, 12)
            loss = F.mse_loss(model(inputs), inputs.prod(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % REPORT_EVERY == 0:
                onset.mark_latest()
                pool.submit(publish, losses[-REPORT_EVERY:])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
