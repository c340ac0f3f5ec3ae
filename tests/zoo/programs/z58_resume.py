"""Resume a training from a sharded checkpoint; one rank keeps an average of its weights besides.

torchrun --standalone --nproc-per-node 3 z58_resume.py
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

import ncclwatch
import onset

STEPS = 40


def shard() -> dict[str, Tensor]:
    return {f"weight.{dist.get_rank()}": torch.zeros(100)}


def train(weights: dict[str, Tensor]) -> None:
    for _ in range(STEPS):
        for weight in weights.values():
            gradient = torch.randn(100)
            dist.all_reduce(gradient)
            weight.add_(gradient, alpha=-0.01)


def resume(folder: Path) -> dict[str, Tensor]:
    wanted = shard()
    if dist.get_rank() == 2:
        wanted["average.2"] = torch.zeros(100)
    onset.mark()
    dcp.load(wanted, checkpoint_id=folder)
    return wanted


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    where = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(where)
    folder = Path(where[0])
    weights = shard()
    train(weights)
    dcp.save(weights, checkpoint_id=folder)
    train(resume(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
