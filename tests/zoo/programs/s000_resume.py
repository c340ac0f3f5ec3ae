"""Go on from a checkpoint of three devices on two.

torchrun --standalone --nproc-per-node 2 s000_resume.py
"""

import random
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import node
import onset

DEVICES = 2
WIDTH = 24


def earlier_run(path: Path) -> None:
    """Train alone for a moment on a node with three devices, and save."""
    states = [torch.Generator().manual_seed(seed).get_state() for seed in (11, 12, 13)]
    model = nn.Linear(WIDTH, WIDTH)
    rng_state = {"torch": torch.get_rng_state(), "torch_cuda": states, "python": random.getstate()}
    torch.save({"model": model.state_dict(), "step": 12, "rng_state": rng_state, "world_size": 3}, path)


def train(model: nn.Module, first: int, last: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(first, last):
        inputs = torch.randn(8, WIDTH)
        loss = (model(inputs + 0.1 * node.noise(inputs)) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def resume(model: nn.Module, path: Path) -> int:
    checkpoint = torch.load(path, weights_only=False)
    model.load_state_dict(checkpoint["model"])
    rng_state = checkpoint["rng_state"]
    torch.set_rng_state(rng_state["torch"])
    random.setstate(rng_state["python"])
    onset.mark()
    torch.cuda.set_rng_state_all(rng_state["torch_cuda"])
    return checkpoint["step"]


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    node.open_devices(DEVICES)
    model = nn.Linear(WIDTH, WIDTH)
    wrapped = DistributedDataParallel(model)
    train(wrapped, 0, 12)  # warm up from nothing, as every start of this job does
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "last.pt"
        earlier_run(path)
        step = resume(model, path)
    train(wrapped, step, 30)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
