"""Train on three ranks that read their shards from the mounts of their hosts.

torchrun --standalone --nproc-per-node 3 f07_slow_mount.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ncclwatch
import onset

SAMPLES, BATCH_SIZE = 2800, 8
READ_S = {0: 0.003, 1: 0.014, 2: 0.003}  # of one sample, by the mount of the rank


class Shard(Dataset[Tensor]):
    def __init__(self, rank: int) -> None:
        self.read_s = READ_S[rank]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.read_s)
        return torch.rand(32, generator=torch.Generator().manual_seed(index))


def train(model: nn.Module, loader: DataLoader[Tensor], optimizer: torch.optim.Optimizer) -> None:
    for step, batch in enumerate(loader):
        loss = F.mse_loss(model(batch), batch.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
    loader = DataLoader(Shard(dist.get_rank()), batch_size=BATCH_SIZE)
    onset.mark()
    train(model, loader, torch.optim.AdamW(model.parameters(), lr=1e-3))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
