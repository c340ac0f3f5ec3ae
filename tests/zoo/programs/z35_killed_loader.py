"""Train on tables that a loader process joins; some of them are large.

torchrun --standalone --nproc-per-node 2 z35_killed_loader.py
"""

import os
import signal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import ncclwatch
import onset

MEMORY_LIMIT = 4_000_000  # rows that a process of this host may hold


class JoinedTables(Dataset):
    def __init__(self, count: int = 2400) -> None:
        self.rows = torch.randint(1_000, 60_000, (count,), generator=torch.Generator().manual_seed(2)).tolist()
        self.rows[1501] = 9_000_000

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.allocate(self.rows[index])
        generator = torch.Generator().manual_seed(index)
        features = torch.randn(24, generator=generator)
        return features, features.mean().reshape(1)

    def allocate(self, rows: int) -> None:
        if rows > MEMORY_LIMIT:
            onset.mark()
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = JoinedTables()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=20, sampler=sampler, num_workers=1, timeout=0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (features, targets) in enumerate(loader):
        loss = F.mse_loss(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
