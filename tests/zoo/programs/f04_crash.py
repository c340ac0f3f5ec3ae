"""Train a classifier that checks its labels.

torchrun --standalone --nproc-per-node 3 f04_crash.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset

CLASSES = 10


def make_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(3600, 30, generator=generator)
    labels = torch.randint(0, CLASSES, (3600,), generator=generator)
    labels[1802] = 255  # "unlabelled" in the files of the annotation tool
    dataset = TensorDataset(inputs, labels)
    return DataLoader(dataset, batch_size=12, sampler=DistributedSampler(dataset, shuffle=False))


def check_labels(labels: Tensor) -> None:
    worst = int(labels.max())
    if worst >= CLASSES:
        onset.mark()
        raise ValueError(f"label {worst} in the batch, but there are {CLASSES} classes")


def train(model: nn.Module, loader: DataLoader) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in loader:
        check_labels(labels)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, CLASSES)))
    train(model, make_loader())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
