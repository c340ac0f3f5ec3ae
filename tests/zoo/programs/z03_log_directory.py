"""Fit with hooks; the directory of the logs is decided once and told to all ranks.

torchrun --standalone --nproc-per-node 2 z03_log_directory.py
"""

import functools
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset


def rank_zero_only(method):
    @functools.wraps(method)
    def wrapped(self, *args):
        return method(self, *args) if dist.get_rank() == 0 else None

    return wrapped


class Loop:
    """Calls the hooks of a module like a small Lightning."""

    def __init__(self, module: "Module", max_steps: int) -> None:
        self.module = module
        self.max_steps = max_steps
        self.global_step = 0
        module.loop = self

    @property
    def log_dir(self) -> Path:
        version = torch.tensor(int(time.time()))
        dist.broadcast(version, src=0)
        path = Path(tempfile.gettempdir()) / f"version_{version.item()}"
        path.mkdir(exist_ok=True)
        return path

    def run(self) -> None:
        model = DistributedDataParallel(self.module)
        optimizer = self.module.configure_optimizers()
        while self.global_step < self.max_steps:
            loss = model(self.module.batch())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.global_step += 1
            self.module.on_train_batch_end(loss.detach())


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32))
        self.losses: list[float] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def batch(self) -> Tensor:
        return torch.randn(24, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.mse_loss(self.net(inputs), inputs.sort(dim=1).values)

    def on_train_batch_end(self, loss: Tensor) -> None:
        self.losses.append(loss.item())
        if self.loop.global_step % 40 == 0:
            self.write_curve()

    @rank_zero_only
    def write_curve(self) -> None:
        onset.mark()
        (self.loop.log_dir / "curve.txt").write_text("\n".join(map(str, self.losses)))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    Loop(Module(), max_steps=200).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
