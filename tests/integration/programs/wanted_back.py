"""Waits for operations, drops their tensors, and prints how many of those are gone at once. FSDP wants them back."""

import sys
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

import ncclwatch
from ncclwatch.rank import attach

OPERATIONS = 20
FREE_S = 0.02  # gloo's thread lets go of a work within microseconds, if it gets a core


def is_gone() -> bool:
    """Say whether a tensor is gone as soon as the program has dropped it."""
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    time.sleep(FREE_S)
    work.wait()
    storage = StorageWeakRef(tensor.untyped_storage())
    del tensor, work
    return bool(storage.expired())


def main() -> None:
    """Do it in a job of one rank, that records natively."""
    dist.init_process_group("gloo")
    ncclwatch.attach(native=True)
    assert type(attach.current()).__name__ == "NativeRecorder", sys.argv
    print(f"gone {sum(is_gone() for _ in range(OPERATIONS))}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
