"""Read features that one rank builds under a lock of filelock, and keep a journal that whoever finds it free writes.

torchrun --standalone --nproc-per-node 3 c28_features_and_a_journal.py
"""

import fcntl
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

BUILD_S = 15.0


class Shared:
    """A directory of the job that all ranks of the node use."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.gettempdir()) / f"shared-{os.environ['TORCHELASTIC_RUN_ID']}"
        self.directory.mkdir(exist_ok=True)
        self.lock = filelock.FileLock(self.directory / "features.lock")

    def features(self) -> Tensor:
        file = self.directory / "features.pt"
        with self.lock:
            if not file.exists():
                time.sleep(BUILD_S)  # a download
                torch.save(torch.randn(512, 24), file)
        dist.barrier()
        return torch.load(file)

    def note(self, line: str) -> None:
        """Write a line to the journal, unless another rank is at it."""
        with (self.directory / "journal.txt").open("a") as journal:
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            print(line, file=journal, flush=True)
            time.sleep(0.05)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    shared = Shared()
    features = shared.features()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 201):
        batch = features[torch.randint(0, len(features), (64,))]
        loss = F.mse_loss(model(batch), batch.mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shared.note(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
