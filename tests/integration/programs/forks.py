"""A parent attaches and forks the two ranks of its job; at step 30 rank 1 goes to a barrier that rank 0 never reaches.

Of a launcher's script (`launched`) each rank forks one child that trains, and has its place in the job.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import init_process_group
from torch.utils.data import DataLoader

import ncclwatch

ncclwatch.attach()


def train() -> None:
    init_process_group("gloo")
    for step, _ in enumerate(DataLoader(range(1000), num_workers=2, multiprocessing_context="fork")):
        if step == 30 and dist.get_rank() == 1:
            dist.barrier()
        dist.all_reduce(torch.ones(2))


def be_rank(rank: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    train()


if sys.argv[1:] == ["launched"]:
    child = os.fork()
    if child == 0:
        train()
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
torch.multiprocessing.start_processes(be_rank, nprocs=2, start_method="fork")
