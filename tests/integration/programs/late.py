"""Two ranks train; now and then rank 0 alone validates while rank 1 waits in a barrier, the last time for long."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

TIMEOUT_S, *VALIDATIONS_S = (float(text) for text in sys.argv[1:])
AFTERWARDS_S = 4.0  # so that a wait is seen to be over


def train(model: DistributedDataParallel, seconds: float) -> None:
    """Train until rank 0 says that the time is over."""
    end = time.monotonic() + seconds
    going = torch.ones(1)
    while going.item():
        model(torch.ones(4, 8)).sum().backward()
        going[0] = float(time.monotonic() < end)
        dist.broadcast(going, 0)


def validate(seconds: float) -> float:
    """Compute for so long."""
    end = time.monotonic() + seconds
    found = torch.ones(64, 64)
    while time.monotonic() < end:
        found = (found @ torch.ones(64, 64)).tanh()
    return float(found.sum())


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    train(model, 1.0)
    for seconds in VALIDATIONS_S:
        if dist.get_rank() == 0:
            validate(seconds)
        dist.barrier()
        train(model, 1.0)
    train(model, AFTERWARDS_S)
    print("trained to the end", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
