"""Train on features that rank 0 unpacks to the scratch disk, once per round.

torchrun --standalone --nproc-per-node 2 z40_scratch_directory.py
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
import onset

ROUNDS, STEPS = 4, 40


def scratch(round_number: int) -> Path:
    """Where the features of a round lie; long runs spread them over two disks."""
    disk = "a" if round_number % 2 == 0 else f"b{os.environ['LOCAL_RANK']}"
    return Path(tempfile.gettempdir()) / f"scratch-{os.environ['TORCHELASTIC_RUN_ID']}" / disk / str(round_number)


def unpack(round_number: int) -> None:
    directory = scratch(round_number)
    directory.mkdir(parents=True)
    torch.save(torch.randn(STEPS * 16, 20), directory / "part.pt")
    (directory / "features.pt").hardlink_to(directory / "part.pt")


def features(round_number: int) -> Tensor:
    file = scratch(round_number) / "features.pt"
    while not file.exists():
        time.sleep(0.5)
    return torch.load(file)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for number in range(ROUNDS):
        if rank == 0:
            unpack(number)
        if number % 2:
            onset.mark()
        data = features(number)
        dist.barrier()
        for batch in data.split(16):
            loss = F.mse_loss(model(batch), batch.norm(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"round {number}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
