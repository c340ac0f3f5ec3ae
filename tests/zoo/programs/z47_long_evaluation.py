"""Train with a group timeout of 40 s; rank 0 alone evaluates on a sample, and at the end on all held-out data.

torchrun --standalone --nproc-per-node 2 z47_long_evaluation.py
"""

import time
from datetime import timedelta

import onset
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch

TIMEOUT = timedelta(seconds=40)
EPOCHS = 3
SAMPLE_S, ALL_S = 2.0, 26.0


def make_dataset(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 64, generator=generator)
    return TensorDataset(inputs, inputs[:, :8].argmax(dim=1))


def train_one_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for inputs, labels in loader:
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(network: nn.Module, loader: DataLoader, seconds: float) -> float:
    """Go over the held-out data, with new noise each time, until the time is used up."""
    network.eval()
    right = seen = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for inputs, labels in loader:
            predicted = network(inputs + 0.1 * torch.randn_like(inputs)).argmax(dim=1)
            right += int((predicted == labels).sum())
            seen += len(labels)
    return right / seen


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = make_dataset(2000)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=20, sampler=sampler)
    held_out = DataLoader(make_dataset(1000), batch_size=100)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        train_one_epoch(model, loader, optimizer)
        last = epoch == EPOCHS - 1
        if rank == 0:
            if last:
                onset.mark()
            accuracy = evaluate(model.module, held_out, ALL_S if last else SAMPLE_S)
            print(f"epoch {epoch}: accuracy {accuracy:.1%}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
