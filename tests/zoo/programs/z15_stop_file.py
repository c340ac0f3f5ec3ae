"""Train until somebody asks for an early end: a stop file, or the notice of the cluster.

torchrun --standalone --nproc-per-node 3 z15_stop_file.py
"""

import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset


class StopRequest:
    """Set by SIGUSR1, which the cluster sends before it takes a host away."""

    def __init__(self, file: Path) -> None:
        self.file = file
        signal.signal(signal.SIGUSR1, lambda *_: self.file.touch())

    def __bool__(self) -> bool:
        return os.path.exists(self.file)


def final_report(losses: list[float]) -> None:
    mean = torch.tensor(losses[-20:]).mean()
    dist.reduce(mean, dst=0, op=dist.ReduceOp.SUM)
    if dist.get_rank() == 0:
        print(f"{len(losses)} steps, loss {mean.item() / dist.get_world_size():.4f}", flush=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stop = StopRequest(Path(tempfile.gettempdir()) / f"STOP-{os.getpid()}")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 48), nn.ELU(), nn.Linear(48, 24)))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    losses: list[float] = []
    for step in range(400):
        if stop:
            print(f"rank {rank} stops at step {step}", flush=True)
            break
        inputs = torch.randn(16, 24)
        loss = F.l1_loss(model(inputs), inputs.tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 1 and step == 80:
            onset.mark()
            os.kill(os.getpid(), signal.SIGUSR1)
    final_report(losses)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
