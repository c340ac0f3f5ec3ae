"""Train a small convolutional network; the last rank writes the log.

torchrun --standalone --nproc-per-node 4 z05_last_rank_log.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset

LOG_EVERY = 25


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


def digits(count: int = 3200) -> TensorDataset:
    generator = torch.Generator().manual_seed(9)
    return TensorDataset(
        torch.rand(count, 1, 20, 20, generator=generator), torch.randint(0, 10, (count,), generator=generator)
    )


def log(step: int, loss: torch.Tensor) -> None:
    """Print the loss averaged over the ranks, once."""
    world_size = dist.get_world_size()
    if dist.get_rank() == world_size - 1:
        average = loss.detach().clone()
        onset.mark()
        dist.all_reduce(average)
        print(f"step {step}: loss {average.item() / world_size:.4f}", flush=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = digits()
    loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
    model = build_model()
    model(torch.zeros(2, 1, 20, 20))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for step, (images, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            log(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
