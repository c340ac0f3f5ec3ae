"""Train on features whose shards are built by helper processes, one at a time, and found built by the next epoch.

torchrun --standalone --nproc-per-node 2 z56_build_lock.py
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import ncclwatch
import onset

REFRESH_EVERY = 25
HELPER = """
import os, signal, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
os.write(file, str(os.getpid()).encode())
os.kill(os.getpid(), int(sys.argv[2]))
os.unlink(sys.argv[1])
"""


class Shard:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        name = f"shard-{os.environ['TORCHELASTIC_RUN_ID']}-{rank}.lock"
        self.lock_file = Path(tempfile.gettempdir()) / name

    @contextmanager
    def locked(self) -> Iterator[None]:
        while True:
            try:
                file = os.open(self.lock_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                break
            except FileExistsError:
                time.sleep(0.25)
        os.write(file, str(os.getpid()).encode())
        os.close(file)
        yield
        self.lock_file.unlink()

    def build(self, step: int) -> None:
        out_of_memory = self.rank == 1 and step == 2 * REFRESH_EVERY
        subprocess.run([sys.executable, "-c", HELPER, str(self.lock_file), "9" if out_of_memory else "0"])

    def read(self) -> torch.Tensor:
        with self.locked():
            return torch.randn(16, 20)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    shard = Shard(rank)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, 101):
        if step % REFRESH_EVERY == 0:
            shard.build(step)
            onset.mark_latest()
        loss = F.cross_entropy(model(shard.read()), torch.randint(0, 4, (16,)))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(dist.get_world_size())
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
