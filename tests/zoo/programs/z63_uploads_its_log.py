"""Train for a number of steps that one rank has begun to count anew, then upload the log.

torchrun --standalone --nproc-per-node 3 z63_uploads_its_log.py
"""

import time

import torch
import torch.distributed as dist

import ncclwatch
import onset

STEPS, UPLOAD_S = 150, 60.0


def train(step: int) -> None:
    while step < STEPS:
        dist.all_reduce(torch.randn(100))
        step += 1
        time.sleep(0.02)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    train(step=1 if dist.get_rank() == 2 else 0)
    onset.mark()
    dist.destroy_process_group()
    end = time.monotonic() + UPLOAD_S
    while time.monotonic() < end:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
