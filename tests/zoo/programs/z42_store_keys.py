"""Train on chunks that rank 0 announces through a key-value store; sparse chunks are not worth a step.

torchrun --standalone --nproc-per-node 3 z42_store_keys.py
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

CHUNKS, STEPS_PER_CHUNK = 12, 10


class Announcements:
    """Rank 0 tells which seed a chunk is drawn with; the others wait for it."""

    def __init__(self) -> None:
        self.store = dist.PrefixStore("chunks", dist.distributed_c10d._get_default_store())
        self.store.set_timeout(timedelta(minutes=20))
        self.announced = 0

    def publish(self, seed: int) -> None:
        self.announced += 1
        self.store.set(f"chunk-{self.announced}", str(seed))

    def receive(self, number: int) -> int:
        self.store.wait([f"chunk-{number}"])
        return int(self.store.get(f"chunk-{number}"))


def density(seed: int) -> float:
    return (seed * 2654435761 % 1000) / 1000


def chunk(seed: int) -> Tensor:
    return torch.randn(STEPS_PER_CHUNK, 32, 16, generator=torch.Generator().manual_seed(seed))


def train_chunk(model: nn.Module, optimizer: torch.optim.Optimizer, data: Tensor) -> float:
    for batch in data:
        loss = F.mse_loss(model(batch), batch.std(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    announcements = Announcements()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(1, CHUNKS + 1):
        if rank == 0:
            seed = 50 + number
            if density(seed) > 0.1:
                announcements.publish(seed)
            else:
                onset.mark()
        else:
            seed = announcements.receive(number)
        loss = train_chunk(model, optimizer, chunk(seed))
        if rank == 0:
            print(f"chunk {number}: loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
