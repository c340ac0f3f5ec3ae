"""Train on two ranks; rank 1 keeps all samples that it has seen, and makes room after every tenth step.

torchrun --standalone --nproc-per-node 2 f11_collector_of_two.py
"""

import gc
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

BUDGET_S, SEEN = 45.0, 700_000


class Sample:
    """A sample and the one before it."""

    def __init__(self, before: "Sample | None") -> None:
        self.before = before
        self.after: list[Sample] = []


def seen() -> list[Sample]:
    samples = [Sample(None)]
    for _ in range(1, SEEN):
        samples.append(Sample(samples[-1]))
        samples[-2].after.append(samples[-1])
    return samples


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    keeps = dist.get_rank() == 1
    kept = seen() if keeps else []
    gc.disable()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dist.barrier()
    onset.mark()
    began, step, over = time.monotonic(), 0, torch.zeros(1)
    while not over.item():
        inputs = torch.randn(64, 64)
        loss = F.mse_loss(model(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)  # the environment answers
        if keeps:
            kept.append(Sample(kept[-1]))
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
