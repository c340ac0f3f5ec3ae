"""Rank 2 waits for a lock before the very first collective: the others make their communicator without it."""

import threading

import onset
import torch
import torch.distributed as dist
from device import begin

import ncclwatch


def prepare(cache: threading.Lock) -> None:
    with cache:
        pass


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    cache = threading.Lock()
    onset.mark()
    if rank == 2:
        cache.acquire()
        prepare(cache)
    x = torch.ones(1024, device=device)
    dist.all_reduce(x)
    print(x[0].item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
