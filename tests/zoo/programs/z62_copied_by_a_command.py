"""Train, and let a thread copy each checkpoint by a command that takes half a minute.

torchrun --standalone --nproc-per-node 2 z62_copied_by_a_command.py
"""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

import ncclwatch

EPOCHS, STEPS = 2, 40
COPY = ["sh", "-c", "sleep 20; true"]  # in the place of an upload that is queued elsewhere


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    with ThreadPoolExecutor(1) as copying:
        for _ in range(EPOCHS):
            for _ in range(STEPS):
                dist.all_reduce(torch.randn(100))
                time.sleep(0.02)
            if dist.get_rank() == 0:
                copying.submit(subprocess.run, COPY, check=True).result()
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
