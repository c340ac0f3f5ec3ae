"""Train on tokens that a job of somebody else writes on this node, under a lock.

torchrun --standalone --nproc-per-node 2 z64_lock_of_another_job.py
"""

import fcntl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ncclwatch

STEPS, NEEDS_TOKENS = 80, 40
WRITE_S = 20.0
OTHER_JOB = """
import fcntl, os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
path, seconds = sys.argv[1], float(sys.argv[2])
with open(path, "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    open(path + ".held", "w").close()
    end = time.monotonic() + seconds
    with open(path + ".tokens", "w") as tokens:
        while time.monotonic() < end:
            tokens.write("token " * 10_000)
            tokens.seek(0)
            time.sleep(0.02)
"""


def wait_for_tokens(place: Path) -> None:
    lock = place / "lock"
    subprocess.run([sys.executable, "-c", OTHER_JOB, str(lock), str(WRITE_S)], check=True)
    while not (place / "lock.held").exists():
        time.sleep(0.05)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as place:
        for step in range(STEPS):
            if step == NEEDS_TOKENS and dist.get_rank() == 0:
                wait_for_tokens(Path(place))
            dist.all_reduce(torch.randn(100))
            time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
