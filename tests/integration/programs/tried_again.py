"""Some ranks; the last one is stopped the first time, and the job goes through the second time.

With "always" it is stopped each time; with "then the first" rank 0 is stopped the second time, and only the first
attempt saves. Each attempt has its own part of torchrun's store: with torch 2.13 gloo may else
find the addresses of the attempt before.
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
    Path(sys.argv[1], f"attempt{attempt}").touch()
    of_torchrun = os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    shared = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]),
        is_master=not of_torchrun and os.environ["RANK"] == "0",
    )  # fmt: skip
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(attempt, shared), rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )  # fmt: skip
    stopped_before = Path(sys.argv[1], "stopped")
    stopped = stopped_before.exists()
    for step in range(STEPS):
        first, last = dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1
        if step == STOPPED_AT // 2 and first and not stopped:
            torch.save(torch.ones(100_000), Path(sys.argv[1], "checkpoint"))
        if step == STOPPED_AT and last and (not stopped or "always" in sys.argv):
            stopped_before.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        if step == STOPPED_AT and first and stopped and "then the first" in sys.argv:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(4))
        if step == 0:
            Path(sys.argv[1], f"stepped{attempt}").touch()
        time.sleep(0.05)
    print("through", flush=True)
    dist.destroy_process_group()


main()
