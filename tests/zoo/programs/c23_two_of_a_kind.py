"""Train on two ranks whose batches take as long as their texts are: unequal step by step, alike in the end.

torchrun --standalone --nproc-per-node 2 c23_two_of_a_kind.py
"""

import gc
import random
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

BUDGET_S = 55.0


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    lengths = random.Random(dist.get_rank())
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    began, step, over = time.monotonic(), 0, torch.zeros(1)
    while not over.item():
        time.sleep(min(1.0, lengths.expovariate(10.0)))  # the tokenizer's service
        inputs = torch.randn(32, 32)
        loss = F.mse_loss(model(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            gc.collect()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        over.fill_(time.monotonic() - began > BUDGET_S)
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
