"""Train on three ranks and save in every way that is right: a file a rank, a sharded checkpoint, one file by rank 0.

torchrun --standalone --nproc-per-node 3 c17_savers.py
"""

import io
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

STEPS, SAVE_EVERY = 60, 20
PAUSE_S = 0.1


def size_of(state: dict[str, object]) -> int:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return len(buffer.getvalue())


def save(model: DistributedDataParallel, step: int, directory: Path) -> None:
    rank, state = dist.get_rank(), {"model": model.module.state_dict(), "step": step}
    torch.save(state, "/dev/null")
    with (directory / "saves.log").open("a") as log:
        log.write(f"rank {rank}, step {step}: {size_of(state)} bytes\n")
    torch.save({"rng": torch.get_rng_state(), **state}, directory / f"rank{rank}.pt")
    dcp.save(state, checkpoint_id=directory / f"sharded-{step}")
    if rank == 0:
        torch.save(state, directory / "last.pt.tmp")
        (directory / "last.pt.tmp").replace(directory / "last.pt")
    dist.barrier()
    for turn in range(dist.get_world_size()):
        if turn == rank:
            torch.save(state, directory / "turns.pt")
        dist.barrier()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names = [tempfile.mkdtemp(prefix="run-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(names)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(16, 512)
        loss = F.mse_loss(model(inputs), inputs.roll(1, dims=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(PAUSE_S)
        if step % SAVE_EVERY == 0:
            save(model, step, Path(names[0]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
