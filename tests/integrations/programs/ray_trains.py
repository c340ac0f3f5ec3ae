"""Two workers of Ray Train, whose loops Ray runs beside their main threads. No callback of ncclwatch.

With "hangs" rank 0 alone makes a collective. With "is stopped" rank 1 is stopped the first time; Ray starts both again.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

STEPS = 60


def train(settings: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    import ncclwatch

    ncclwatch.attach()
    for step in range(STEPS):
        if step == STEPS // 2 and settings["how"] == "hangs" and dist.get_rank() == 0:
            dist.all_reduce(torch.ones(8))
        if step == STEPS // 2 and settings["how"] == "is stopped" and dist.get_rank() == 1:
            stopped = Path(settings["directory"], "stopped")
            if not stopped.exists():
                stopped.touch()
                os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()
        time.sleep(0.05)
    Path(settings["directory"], f"through{dist.get_rank()}").touch()


def main() -> None:
    directory, how = sys.argv[1:]
    ray.init(num_cpus=4, include_dashboard=False)
    TorchTrainer(
        train,
        train_loop_config={"directory": directory, "how": how},
        scaling_config=ScalingConfig(num_workers=2),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=directory, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    print("trained", flush=True)


if __name__ == "__main__":
    main()
