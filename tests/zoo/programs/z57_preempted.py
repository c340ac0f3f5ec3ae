"""Train a regression, and save when the scheduler sends SIGUSR1 before it preempts a node.

torchrun --standalone --nproc-per-node 3 z57_preempted.py
"""

import os
import signal
import tempfile
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

STEPS, NOTICE_AT = 400, 80


class Trainer:
    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        signal.signal(signal.SIGUSR1, self.save)

    def save(self, number: int, frame: FrameType | None) -> None:
        onset.mark()
        self.wait_for_all()
        torch.save(self.model.module.state_dict(), self.folder / f"model-{dist.get_rank()}.pt")
        self.wait_for_all()

    def wait_for_all(self) -> None:
        dist.barrier()

    def step(self) -> None:
        inputs = torch.randn(16, 20)
        loss = (self.model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def notice(step: int) -> None:
    """Do what the scheduler does to one node."""
    if step == NOTICE_AT and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGUSR1)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Path(folder))
        for step in range(1, STEPS + 1):
            trainer.step()
            notice(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
