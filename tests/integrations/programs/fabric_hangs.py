"""Rank 0 alone calls fabric.save, which meets all ranks. No callback of ncclwatch."""

import sys

import torch
from lightning.fabric import Fabric

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    module = torch.nn.Linear(8, 1)
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.01))
    for step in range(200):
        loss = model(torch.randn(4, 8)).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step == 12 and fabric.global_rank == 0:
            fabric.save(f"{sys.argv[1]}/now.ckpt", {"model": model, "step": step})


if __name__ == "__main__":
    main()
