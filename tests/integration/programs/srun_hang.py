"""Tasks of srun train, as users of Slurm begin them without torchrun; at step 30 rank 2 goes to a barrier of its own.

With "stopped" it is stopped there instead. A job that was requeued says so, and trains to its end.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import ncclwatch

STEPS = 60


def main() -> None:
    ncclwatch.attach()
    rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    gradients = torch.ones(1024)
    for step in range(STEPS):
        time.sleep(0.05)
        if step == STEPS // 2 and rank == 2 and not restarts:
            if "stopped" in sys.argv:
                os.kill(os.getpid(), signal.SIGSTOP)
            dist.barrier()
        dist.all_reduce(gradients)
        gradients.fill_(1.0)
    if rank == 0:
        print(f"trained to the end after {restarts} restarts", flush=True)


if __name__ == "__main__":
    main()
