"""Fit a small model and print its loss from a callback.

torchrun --standalone --nproc-per-node 3 z01b_callback.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset
from trainer import Callback, Trainer, rank_zero_only


class PrintLoss(Callback):
    def __init__(self, every: int) -> None:
        self.every = every

    @rank_zero_only
    def on_step_end(self, trainer: Trainer) -> None:
        if trainer.step % self.every == 0:
            onset.mark()
            print(f"step {trainer.step}: loss {trainer.mean_loss:.4f}", flush=True)


class CountSteps(Callback):
    @rank_zero_only
    def on_fit_end(self, trainer: Trainer) -> None:
        print(f"{trainer.step} steps", flush=True)


def make_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(8)
    inputs = torch.randn(3000, 48, generator=generator)
    dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sign())
    return DataLoader(dataset, batch_size=10, sampler=DistributedSampler(dataset))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(48, 128), nn.Tanh(), nn.Linear(128, 1))
    Trainer(callbacks=[PrintLoss(every=35), CountSteps()]).fit(network, make_loader(), nn.SoftMarginLoss())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
