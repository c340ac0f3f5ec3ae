"""Train with DDP and let rank 0 alone evaluate the model after every other epoch.

torchrun --standalone --nproc-per-node 3 c01_validation_rank0.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch

EPOCHS = 2
EVALUATE_EVERY = 2
EVALUATION_S = 20.0


def make_dataset(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 128, generator=generator)
    return TensorDataset(inputs, inputs[:, :16].argmax(dim=1))


def train_one_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for inputs, labels in loader:
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(network: nn.Module, loader: DataLoader) -> float:
    """Go over the evaluation data, with new noise each time, until the time is used up."""
    network.eval()
    right = seen = 0
    end = time.monotonic() + EVALUATION_S
    while time.monotonic() < end:
        for inputs, labels in loader:
            predicted = network(inputs + 0.1 * torch.randn_like(inputs)).argmax(dim=1)
            right += int((predicted == labels).sum())
            seen += len(labels)
    return right / seen


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = make_dataset(4800)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    held_out = DataLoader(make_dataset(2000), batch_size=100)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        train_one_epoch(model, loader, optimizer)
        if rank == 0 and epoch % EVALUATE_EVERY == 0:
            accuracy = evaluate(model.module, held_out)
            print(f"epoch {epoch}: accuracy {accuracy:.1%}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
