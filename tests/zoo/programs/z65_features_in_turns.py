"""Read features that the ranks of a node share; whoever comes first to a shard builds it, under a lock of filelock.

torchrun --standalone --nproc-per-node 3 z65_features_in_turns.py
"""

import os
import tempfile
import time
from pathlib import Path

import filelock
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

STEPS_PER_SHARD = 25


class Shards:
    def __init__(self) -> None:
        self.directory = Path(tempfile.gettempdir()) / f"features-{os.environ['TORCHELASTIC_RUN_ID']}"
        self.directory.mkdir(exist_ok=True)
        self.lock = filelock.FileLock(self.directory / "shards.lock")

    def load(self, number: int) -> Tensor:
        file = self.directory / f"{number}.pt"
        time.sleep(0.5 * dist.get_rank())  # so that not all ask the disk at once
        onset.mark_latest()
        with self.lock:
            if not file.exists():
                torch.save(torch.randn(512, 24), file)
            dist.barrier()
        return torch.load(file)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    shards, features = Shards(), torch.randn(512, 24)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 101):
        if step % STEPS_PER_SHARD == 0:
            features = shards.load(step // STEPS_PER_SHARD)
        batch = features[torch.randint(0, len(features), (64,))]
        loss = F.mse_loss(model(batch), batch.mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
