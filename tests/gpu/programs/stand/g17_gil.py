"""A C library of one rank sleeps and holds the interpreter lock."""

import ctypes

import onset
import torch
import torch.distributed as dist
from device import Network, batch, begin
from torch.nn.parallel import DistributedDataParallel

import ncclwatch


def tokenize(native: ctypes.PyDLL) -> None:
    native.sleep(100_000)


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    native = ctypes.PyDLL(None)
    model = DistributedDataParallel(Network().to(device))
    for step in range(60):
        loss = model(batch(device)).square().mean()
        if step == 30 and rank == 1:
            onset.mark()
            tokenize(native)
        loss.backward()
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
