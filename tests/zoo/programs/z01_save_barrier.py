"""Train a small classifier with DDP and save a checkpoint every so often.

torchrun --standalone --nproc-per-node 2 z01_save_barrier.py
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset

SAVE_EVERY = 40


def make_dataset(samples: int = 8000, features: int = 64) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, features, generator=generator)
    labels = (inputs[:, :10].argmax(dim=1)).long()
    return TensorDataset(inputs, labels)


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, directory: Path) -> None:
    rank = dist.get_rank()
    for step, (inputs, labels) in enumerate(loader, start=1):
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if step % SAVE_EVERY == 0:
            if rank == 0:
                print(f"step {step}: loss {loss.item():.4f}, saving", flush=True)
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                    directory / f"step-{step}.pt",
                )
                onset.mark()
                dist.barrier()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = make_dataset()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, loader, optimizer, Path(tempfile.mkdtemp(prefix="checkpoints-")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
