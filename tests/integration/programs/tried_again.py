"""Two ranks; one of them is stopped the first time, and the job goes through the second time."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ncclwatch

STEPS, STOPPED_AT = 60, 20


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    stopped_before = Path(sys.argv[1], "stopped")
    for step in range(STEPS):
        if step == STOPPED_AT and dist.get_rank() == 1 and not stopped_before.exists():
            stopped_before.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(4))
        time.sleep(0.05)
    print("through", flush=True)
    dist.destroy_process_group()


main()
