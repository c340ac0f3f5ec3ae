"""Train on four ranks; each asks a service of its host for the features of its samples.

torchrun --standalone --nproc-per-node 4 f13_two_of_four.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

BUDGET_S = 60.0
ANSWERS_S = {0: 0.05, 1: 0.25}  # by host, of two ranks each


def features(host: int) -> Tensor:
    time.sleep(ANSWERS_S[host])
    return torch.randn(32, 32)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    host = dist.get_rank() // 2
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dist.barrier()
    onset.mark()
    began, step, over = time.monotonic(), 0, torch.zeros(1)
    while not over.item():
        inputs = features(host)
        loss = F.mse_loss(model(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        over.fill_(time.monotonic() - began > BUDGET_S)
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
