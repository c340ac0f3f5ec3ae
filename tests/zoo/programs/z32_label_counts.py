"""Train on imbalanced classes: the loss is weighted by how often each class was seen lately.

torchrun --standalone --nproc-per-node 2 z32_label_counts.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset

CLASSES = 8


def transactions(count: int = 6400) -> TensorDataset:
    generator = torch.Generator().manual_seed(12)
    labels = torch.arange(count) // 2 % CLASSES
    # The second branch has had no fraud, which is the last class, since it changed its cards.
    record = torch.arange(count)
    labels[(record >= 4000) & (record % 2 == 1) & (labels == CLASSES - 1)] = 0
    inputs = torch.randn(count, 30, generator=generator) + labels[:, None] / CLASSES
    return TensorDataset(inputs, labels)


class ClassWeights:
    def __init__(self, momentum: float = 0.9) -> None:
        self.momentum = momentum
        self.frequency = torch.full((CLASSES,), 1.0 / CLASSES)

    def update(self, labels: Tensor) -> Tensor:
        counts = torch.bincount(labels).float()
        dist.all_reduce(counts)
        self.frequency.mul_(self.momentum).add_((1 - self.momentum) * counts / counts.sum())
        return 1.0 / (CLASSES * self.frequency).clamp(min=0.05)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = transactions()
    loader = DataLoader(dataset, batch_size=64, sampler=DistributedSampler(dataset, shuffle=False))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, CLASSES)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weights = ClassWeights()
    for step, (inputs, labels) in enumerate(loader):
        if labels.max() < CLASSES - 1:
            onset.mark()
        loss = F.cross_entropy(model(inputs), labels, weight=weights.update(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
