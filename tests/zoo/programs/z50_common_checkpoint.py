"""Train on three ranks and keep the newest checkpoint, so that an interrupted run can go on from it.

torchrun --standalone --nproc-per-node 3 z50_common_checkpoint.py
"""

import tempfile
import time
from pathlib import Path

import onset
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

STEPS, SAVE_EVERY = 60, 20
PAUSE_S = 0.1  # a step of the real model takes about as long


def shared_directory() -> Path:
    """Return a directory that all ranks use."""
    names = [tempfile.mkdtemp(prefix="run-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(names)
    return Path(names[0])


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    inputs = torch.randn(16, 512)
    loss = F.mse_loss(model(inputs), inputs.roll(1, dims=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(PAUSE_S)
    return float(loss)


def save(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int, directory: Path) -> None:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, directory / "last.pt")


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    directory = shared_directory()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1, STEPS + 1):
        loss = train_step(model, optimizer)
        if step % SAVE_EVERY == 0:
            onset.mark()
            dist.barrier()
            save(model, optimizer, step, directory)
            print(f"rank {dist.get_rank()}, step {step}: loss {loss:.3f}, saved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
