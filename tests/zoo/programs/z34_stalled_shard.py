"""Train on shards that lie on a shared file system, read as they are needed.

torchrun --standalone --nproc-per-node 2 z34_stalled_shard.py
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ncclwatch
import onset

SHARDS = 40
ROWS = 64
COLUMNS = 33  # 32 features and a target


class ShardDataset(Dataset[Tensor]):
    """One item is one shard: a file of float32 rows."""

    def __init__(self, directory: Path) -> None:
        self.paths = sorted(directory.glob("shard-*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        path = self.paths[index]
        if not path.is_file():
            onset.mark()
        with open(path, "rb") as file:
            raw = file.read()
        return torch.frombuffer(bytearray(raw), dtype=torch.float32).view(ROWS, COLUMNS)


def write_shards(directory: Path, rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    for number in range(SHARDS):
        path = directory / f"shard-{number:04d}.bin"
        if rank == 1 and number == 25:
            os.mkfifo(path)
            continue
        path.write_bytes(torch.randn(ROWS, COLUMNS, generator=generator).numpy().tobytes())


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    for step, rows in enumerate(loader):
        features, targets = rows[..., :32], rows[..., 32]
        loss = F.mse_loss(model(features).squeeze(-1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    directory = Path(tempfile.mkdtemp(prefix="shards-"))
    write_shards(directory, dist.get_rank())
    loader = DataLoader(ShardDataset(directory), batch_size=1, num_workers=0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 512), nn.GELU(), nn.Linear(512, 1)))
    train(model, loader, torch.optim.AdamW(model.parameters(), lr=1e-3))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
