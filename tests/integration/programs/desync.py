"""Two ranks; at step 10 one sums where the other takes the maximum. All go on, until the warning is printed."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    stop = Path(os.environ["STOP_FILE"])
    for step in range(100_000):
        other = step == 10 and dist.get_rank() == 1
        dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if other else dist.ReduceOp.SUM)
        ending = torch.tensor([float(stop.exists())])
        dist.all_reduce(ending)
        if ending.item():
            break
        time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
