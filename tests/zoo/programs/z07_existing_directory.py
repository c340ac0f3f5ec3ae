"""Continue a fine-tuning; a checkpoint that exists already is not written again.

torchrun --standalone --nproc-per-node 2 z07_existing_directory.py
"""

import logging
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

log = logging.getLogger("fine-tune")


class Recipe:
    """Everything that the fine-tuning needs, in one place."""

    def __init__(self, output: Path, save_every: int = 40) -> None:
        self.rank = dist.get_rank()
        self.output = output
        self.save_every = save_every
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(48, 96), nn.SiLU(), nn.Linear(96, 4)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4)
        self.step = 0

    def save_checkpoint(self) -> None:
        path = self.output / f"step_{self.step}"
        if self.rank == 0:
            if path.exists():
                onset.mark()
                log.warning("%s exists, not saved again", path)
                return
            path.mkdir(parents=True)
        dcp.save({"model": self.model.module.state_dict(), "step": self.step}, checkpoint_id=path)

    def train(self, steps: int) -> None:
        while self.step < steps:
            inputs = torch.randn(32, 48)
            loss = F.cross_entropy(self.model(inputs), inputs[:, :4].argmin(dim=1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % self.save_every == 0:
                self.save_checkpoint()


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    output = Path(tempfile.gettempdir()) / f"run-{os.environ['TORCHELASTIC_RUN_ID']}"
    if dist.get_rank() == 0:
        # What the run before this one has left behind.
        (output / "step_80").mkdir(parents=True)
    Recipe(output).train(200)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
