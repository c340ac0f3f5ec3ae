"""Train on shards of different sizes; Join lets the ranks with little data wait for the others.

torchrun --standalone --nproc-per-node 3 c07_joined.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import ncclwatch

SAMPLES = (1400, 400, 900)


def shard(rank: int) -> DataLoader:
    inputs = torch.randn(SAMPLES[rank], 20, generator=torch.Generator().manual_seed(rank))
    return DataLoader(TensorDataset(inputs, inputs.prod(dim=1, keepdim=True)), batch_size=10)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = shard(rank)
    for epoch in range(2):
        with Join([model]):
            for inputs, targets in loader:
                loss = F.mse_loss(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(0.02)
        print(f"epoch {epoch}, rank {rank}: {len(loader)} batches, loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
