"""Two ranks train; after some steps rank 1 goes to a barrier that rank 0 never reaches."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    for step in range(1000):
        if step == 30 and dist.get_rank() == 1:
            dist.barrier()
        model(torch.ones(4, 8)).sum().backward()


if __name__ == "__main__":
    main()
