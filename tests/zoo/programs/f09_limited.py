"""Train on four ranks; a tool on the host of rank 1 keeps its process below a share of a core.

torchrun --standalone --nproc-per-node 4 f09_limited.py
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

BUDGET_S, LIMIT_AT = 40.0, 10
LIMITER = """
import os, signal, sys, time
while True:
    for number, pause in ((signal.SIGSTOP, 0.2), (signal.SIGCONT, 0.03)):
        os.kill(int(sys.argv[1]), number)
        time.sleep(pause)
"""


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Conv2d(c, 16, 3, padding=1) for c in (3, 16, 16))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    limiter = None
    began, step, over = time.monotonic(), 0, torch.zeros(1)
    while not over.item():
        if rank == 1 and step == LIMIT_AT:
            onset.mark()
            limiter = subprocess.Popen([sys.executable, "-c", LIMITER, str(os.getpid())])
        inputs = torch.randn(8, 3, 32, 32)
        loss = F.mse_loss(model(inputs)[:, :3], inputs.roll(1, dims=2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        over.fill_(time.monotonic() - began > BUDGET_S)
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        step += 1
    if limiter is not None:
        limiter.kill()
        limiter.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
