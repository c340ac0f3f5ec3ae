"""Train, and write what fits into twelve seconds of a large state from rank 0, slowly, to spare the shared file system.

torchrun --standalone --nproc-per-node 3 c03_late_io.py
"""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

OPTIMIZER_STATE = 75_000_000  # 300 MB of float32
SLICE_BYTES = 8 << 20
BYTES_PER_S = 25_000_000
WRITE_S = 12.0


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        inputs = torch.randn(32, 64)
        loss = F.mse_loss(model(inputs), inputs.roll(1, dims=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def write_slowly(state: Tensor, path: Path) -> None:
    """Write slice by slice, each flushed to the disk, at a limited rate; the rest is for the next checkpoint."""
    data = memoryview(state.numpy()).cast("B")
    end = time.monotonic() + WRITE_S
    with path.open("wb") as file:
        for begin in range(0, len(data), SLICE_BYTES):
            due = time.monotonic() + SLICE_BYTES / BYTES_PER_S
            file.write(data[begin : begin + SLICE_BYTES])
            file.flush()
            os.fsync(file.fileno())
            time.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() > end:
                break


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, steps=100)
    if dist.get_rank() == 0:
        state = torch.zeros(OPTIMIZER_STATE)
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as directory:
            write_slowly(state, Path(directory) / "optimizer.bin")
        print("checkpoint written", flush=True)
    dist.barrier()
    train(model, optimizer, steps=100)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
