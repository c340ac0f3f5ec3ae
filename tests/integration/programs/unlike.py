"""Three ranks wrap a model with DDP, and the one of rank 2 has read a larger vocabulary.

unlike.py <seconds>: how long all ranks prepare before they wrap it.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    words = 101 if dist.get_rank() == 2 else 100
    time.sleep(float(sys.argv[1]))
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(words, 8), torch.nn.Linear(8, 2)))
    for _ in range(1000):
        model(torch.arange(4)).sum().backward()


if __name__ == "__main__":
    main()
