"""Train on three ranks whose batches take unequal time to read; no rank has more of the slow ones than another.

torchrun --standalone --nproc-per-node 3 c21_turns.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ncclwatch

BATCHES = 150


class Clips(Dataset[Tensor]):
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.15 if index % self.world == self.rank else 0.02)
        return torch.rand(32)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Clips(dist.get_rank(), dist.get_world_size()), batch_size=None)
    for step, batch in enumerate(loader):
        loss = F.mse_loss(model(batch), batch.flip(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
