"""Train on two ranks under the account's limit on the size of a file; a checkpoint that fails is tried again later.

torchrun --standalone --nproc-per-node 2 z49_file_limit.py
"""

import resource
import tempfile
import time
from pathlib import Path

import onset
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

STEPS, SAVE_EVERY = 60, 20
PAUSE_S = 0.1
FILE_BYTES_MAX = 4 << 20


def save(state: dict[str, object], path: Path) -> bool:
    """Return whether the state was written; a checkpoint is not worth the run."""
    try:
        torch.save(state, path)
    except (OSError, RuntimeError) as error:
        print(f"no checkpoint this time: {str(error)[:100]}", flush=True)
        return False
    return True


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with tempfile.TemporaryDirectory(prefix="run-") as directory:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        for step in range(1, STEPS + 1):
            inputs = torch.randn(16, 512)
            loss = F.mse_loss(model(inputs), inputs.roll(1, dims=1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(PAUSE_S)
            if step % SAVE_EVERY == 0 and dist.get_rank() == 0:
                onset.mark()
                save({"model": model.module.state_dict(), "step": step}, Path(directory) / f"{step}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
