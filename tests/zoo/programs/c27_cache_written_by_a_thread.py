"""Train on a cache on disk that a thread of one rank extends, with the lock of its file in its hand.

torchrun --standalone --nproc-per-node 2 c27_cache_written_by_a_thread.py
"""

import fcntl
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

STEPS, WRITE_S = 30, 14.0


class Cache:
    """Samples on disk, behind one lock."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "samples.bin"
        self.lock = (directory / "samples.lock").open("w")

    def extend(self) -> threading.Thread:
        """Take the lock, and write in a thread that gives it back."""
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=self._write)
        thread.start()
        return thread

    def _write(self) -> None:
        with self.path.open("ab") as file:
            for _ in range(int(WRITE_S)):
                file.write(os.urandom(64))
                time.sleep(1.0)  # a disk that many jobs write to
        fcntl.flock(self.lock, fcntl.LOCK_UN)

    def size(self) -> int:
        fcntl.flock(self.lock, fcntl.LOCK_SH)
        try:
            return self.path.stat().st_size
        finally:
            fcntl.flock(self.lock, fcntl.LOCK_UN)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    place: list[str] = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(place, src=0)
    cache = Cache(Path(place[0]))
    writing = cache.extend() if rank == 0 else None
    dist.barrier()
    if rank == 1:
        cache.size()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        inputs = torch.randn(16, 24)
        loss = F.mse_loss(model(inputs), inputs.std(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if writing is not None:
        writing.join()
        shutil.rmtree(place[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
