"""Train a network with batch normalisation and evaluate it on the first rank.

torchrun --standalone --nproc-per-node 3 z04_wrapped_evaluation.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset


def lanes(count: int, seed: int) -> TensorDataset:
    images = torch.rand(count, 1, 24, 24, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(images, images.mean(dim=2).flatten(1).argmax(dim=1))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, 24),
    )


class Experiment:
    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.train_set = lanes(1800, seed=1)
        self.test_set = lanes(200, seed=2)
        self.model = DistributedDataParallel(network())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()

    def train_epoch(self, epoch: int) -> None:
        self.model.train()
        sampler = DistributedSampler(self.train_set)
        sampler.set_epoch(epoch)
        for images, positions in DataLoader(self.train_set, batch_size=20, sampler=sampler):
            self.optimizer.zero_grad()
            self.criterion(self.model(images), positions).backward()
            self.optimizer.step()

    @torch.no_grad()
    def test(self) -> float:
        hits = 0
        for images, positions in DataLoader(self.test_set, batch_size=50):
            hits += (self.model(images).argmax(dim=1) == positions).sum().item()
        return hits / len(self.test_set)

    def run(self, epochs: int) -> None:
        for epoch in range(epochs):
            self.train_epoch(epoch)
            if self.rank == 0:
                onset.mark()
                print(f"epoch {epoch}: accuracy {self.test():.3f}", flush=True)
            dist.barrier()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    Experiment().run(epochs=4)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
