"""Train on two ranks; a thread of each writes the newest weights beside training, into the run that is the latest.

torchrun --standalone --nproc-per-node 2 z50b_background_saver.py
"""

import os
import queue
import tempfile
import threading
import time
from pathlib import Path

import onset
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

STEPS, SAVE_EVERY = 60, 20
PAUSE_S = 0.1


class Saver(threading.Thread):
    """Writes what is put into its queue, until it is given None."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="saver")
        self.path = path
        self.states: queue.Queue[dict[str, Tensor] | None] = queue.Queue(maxsize=1)

    def run(self) -> None:
        while (state := self.states.get()) is not None:
            with self.path.open("wb") as file:
                torch.save(state, file)


def make_run() -> Path:
    """Make a directory for this run and let the name "latest" lead to it; returns how each rank calls it."""
    names = [tempfile.mkdtemp(prefix="runs-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(names)
    runs = Path(names[0])
    if dist.get_rank() == 0:
        (runs / "0017").mkdir()
        os.symlink(runs / "0017", runs / "latest")
    dist.barrier()
    return runs / "0017" if dist.get_rank() == 0 else runs / "latest"


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    saver = Saver(make_run() / "weights.pt")
    saver.start()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 8192), nn.GELU(), nn.Linear(8192, 512)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(16, 512)
        loss = F.mse_loss(model(inputs), inputs.roll(1, dims=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(PAUSE_S)
        if step % SAVE_EVERY == 0:
            onset.mark()
            state = {name: value.clone() for name, value in model.module.state_dict().items()}
            dist.barrier()
            saver.states.put(state)
    saver.states.put(None)
    saver.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
