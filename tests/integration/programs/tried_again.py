"""Some ranks; the last one is stopped the first time, and the job goes through the second time.

With "always" it is stopped each time. Each attempt has a store of its own: torch 2.13 keeps that of torchrun over its
restarts, and gloo then may find the addresses of the attempt before.
"""

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
    attempt = os.environ.get("NCCLWATCH_RESTARTS", "0") + os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group(
        "gloo", init_method=f"file://{sys.argv[1]}/store{attempt}",
        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
    )  # fmt: skip
    stopped_before = Path(sys.argv[1], "stopped")
    for step in range(STEPS):
        last = dist.get_rank() == dist.get_world_size() - 1
        if step == STOPPED_AT and last and (not stopped_before.exists() or "always" in sys.argv):
            stopped_before.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(4))
        time.sleep(0.05)
    print("through", flush=True)
    dist.destroy_process_group()


main()
