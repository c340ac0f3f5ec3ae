"""Train with DDP and write distributed checkpoints in the background.

torchrun --standalone --nproc-per-node 2 z24_async_checkpoint.py
"""

import shutil
import tempfile
from concurrent.futures import Future
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

STEPS, SAVE_EVERY, AVERAGE_EVERY = 400, 40, 4


class Checkpoints:
    """Saves without holding up the training; one save at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.running: Future | None = None

    def save(self, model: nn.Module, step: int) -> None:
        if self.running is not None:
            self.running.result()
        self.running = dcp.async_save({"model": model.state_dict()}, checkpoint_id=self.root / f"step-{step}")


def shared_root() -> Path:
    names = [tempfile.mkdtemp(prefix="checkpoints-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(names)
    return Path(names[0])


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("cpu:gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    root = shared_root()
    checkpoints = Checkpoints(root)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(32, 64)
        loss = F.mse_loss(model(inputs), inputs[:, :8] ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % AVERAGE_EVERY == 0:
            dist.barrier()
        if step % SAVE_EVERY == 0:
            onset.mark_latest()
            checkpoints.save(model.module, step)
            if rank == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
    shutil.rmtree(root, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
