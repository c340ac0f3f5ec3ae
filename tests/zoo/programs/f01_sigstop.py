"""Train a classifier; a rank that runs on a shared host makes room when asked to.

torchrun --standalone --nproc-per-node 3 f01_sigstop.py
"""

import os
import signal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset


def make_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4800, 40, generator=generator)
    dataset = TensorDataset(inputs, inputs[:, :8].argmax(dim=1))
    return DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))


def yield_host(step: int) -> None:
    """Stop until the interactive user of this host sends SIGCONT."""
    if dist.get_rank() == 1 and step == 50:
        onset.mark()
        os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (inputs, labels) in enumerate(make_loader()):
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield_host(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
