"""Train a speech-like sequence model; the utterances are split into one chunk per rank.

torchrun --standalone --nproc-per-node 4 z09_ceil_partition.py
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

import ncclwatch
import onset

UTTERANCES = 1161
BATCH_SIZE = 10
EPOCHS = 2


class Utterances(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, count: int, frames: int = 24, bins: int = 20) -> None:
        generator = torch.Generator().manual_seed(11)
        self.features = torch.randn(count, frames, bins, generator=generator)
        self.targets = torch.randint(0, 30, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.targets[index]


class Recogniser(nn.Module):
    def __init__(self, bins: int = 20, hidden: int = 48, words: int = 30) -> None:
        super().__init__()
        self.encoder = nn.GRU(bins, hidden, batch_first=True)
        self.output = nn.Linear(hidden, words)

    def forward(self, features: Tensor) -> Tensor:
        states, _ = self.encoder(features)
        return self.output(states.mean(dim=1))


def partition(dataset: Dataset, rank: int, world_size: int) -> Subset:
    """Give every rank a contiguous chunk of the data."""
    share = math.ceil(len(dataset) / world_size)
    begin = rank * share
    end = min(begin + share, len(dataset))
    return Subset(dataset, range(begin, end))


def run_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    seen, total = 0, 0.0
    for features, targets in loader:
        loss = F.cross_entropy(model(features), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        seen += len(targets)
        total += loss.item() * len(targets)
    return total / seen


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group(backend="gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)

    part = partition(Utterances(UTTERANCES), rank, world_size)
    loader = DataLoader(part, batch_size=BATCH_SIZE, shuffle=True)
    model = DistributedDataParallel(Recogniser())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(EPOCHS):
        average = run_epoch(model, loader, optimizer)
        onset.mark()
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch}: average loss {average:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
