"""Ranks train until somebody ends them, or until rank 1 goes to a barrier that the others never reach."""

import os
import sys
import time

import torch
import torch.distributed as dist

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    if "SLURM_PROCID" in os.environ:  # srun sets no RANK
        os.environ |= {"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"]}
    dist.init_process_group("gloo")
    last = int(os.environ["STEPS_TILL_HANG"])  # 0: it never does
    gradients = torch.ones(1024)
    step = 0
    while True:
        step += 1
        time.sleep(0.05)
        if step == last and dist.get_rank() == 1:
            dist.barrier()
        dist.all_reduce(gradients)
        gradients.fill_(1.0)
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"trains: step {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
