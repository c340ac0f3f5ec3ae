"""Two ranks of a node share a tokenised cache on disk, which is made anew when the vocabulary grows.

torchrun --standalone --nproc-per-node 2 z36_cache_lock.py
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

REFRESH_EVERY = 50


class Cache:
    """Tokens on disk. Whoever comes first makes them, the others find them made."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "tokens.pt"
        self.lock_file = directory / "tokens.lock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with self.lock_file.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def refresh(self, words: int) -> Tensor:
        with self.locked():
            if not self.file.exists() or torch.load(self.file).max() < words - 1:
                tokens = torch.randint(0, words, (4000, 8))
                tokens[0, 0] = words - 1
                torch.save(tokens, self.file)
            dist.barrier()
        return torch.load(self.file)


def directory_of_job() -> Path:
    path = Path(tempfile.gettempdir()) / f"cache-{os.environ['TORCHELASTIC_RUN_ID']}"
    path.mkdir(exist_ok=True)
    return path


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cache = Cache(directory_of_job())
    torch.manual_seed(rank)
    tokens = torch.randint(0, 100, (4000, 8))
    model = DistributedDataParallel(nn.Sequential(nn.EmbeddingBag(400, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 201):
        if step % REFRESH_EVERY == 0:
            if rank == dist.get_world_size() - 1:
                print("most frequent:", Counter(tokens.flatten().tolist()).most_common(5), flush=True)
                time.sleep(2.0)  # so that the log is not flooded
            onset.mark_latest()
            tokens = cache.refresh(words=100 + step)
        batch = tokens[torch.randint(0, len(tokens), (32,))]
        loss = F.cross_entropy(model(batch), (batch.sum(dim=1) % 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
