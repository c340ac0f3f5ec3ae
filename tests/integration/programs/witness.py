"""A job that hangs in a way that two witnesses can tell of. The first argument says how.

agree    rank 1 holds the GIL in a C call forever; the others wait in the third all_reduce
past     rank 1 sleeps; rank 2 calls its backend's object, past everything that ncclwatch patches
brief    nothing hangs; ends by the way that the second argument names
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import ncclwatch

ncclwatch.attach()
how, *more = sys.argv[1:]
if more == ["at_once"]:
    sys.exit(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones(4)
dist.all_reduce(ones)
dist.all_reduce(ones)


def hang() -> None:
    until_answered_for()
    if how == "agree" and rank == 1:
        ctypes.PyDLL(None).sleep(100_000)
    elif how == "past" and rank == 1:
        threading.Event().wait()
    elif how == "past" and rank == 2:
        dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([ones]).wait()
    else:
        dist.all_reduce(ones)


def until_answered_for() -> None:
    """Wait until this rank's worker server listens: the pulse starts it, and needs the GIL for that."""
    deadline = time.monotonic() + 30.0
    runtime = Path(os.environ["NCCLWATCH_RUNTIME_DIR"])
    while not any(runtime.rglob(f"{os.getpid()}-*.sock")) and time.monotonic() < deadline:
        time.sleep(0.01)


def train() -> None:
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), num_workers=2, multiprocessing_context="fork")
    for (batch,) in loader:
        dist.all_reduce(batch)


if how != "brief":
    hang()
    sys.exit()
train()
if more == ["hard"]:
    os._exit(0)
if more != ["open"]:
    dist.destroy_process_group()
if more == ["child"]:
    # With a group of gloo's still there, a child that ends so stands still in torch, with or without ncclwatch.
    child = os.fork()
    if child == 0:
        sys.exit(0)  # its interpreter ends with all that it has inherited
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
