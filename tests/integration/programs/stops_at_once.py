"""The ranks named on the command line are stopped as soon as their group is made; the others train."""

import os
import signal
import sys

import torch
import torch.distributed as dist

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    if str(dist.get_rank()) in sys.argv[1:]:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()
