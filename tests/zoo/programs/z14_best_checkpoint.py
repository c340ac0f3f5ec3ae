"""Fine-tune with FSDP2 and keep the best model so far.

torchrun --standalone --nproc-per-node 2 z14_best_checkpoint.py
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

import ncclwatch
import onset

EPOCHS, STEPS = 8, 15


class BestKeeper:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.best = float("inf")

    def offer(self, model: nn.Module, loss: float) -> None:
        if loss < self.best:
            self.best = loss
            self.keep(model)

    def keep(self, model: nn.Module) -> None:
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if dist.get_rank() == 0:
            torch.save(state, self.directory / "best.pt")


def validation_loss(model: nn.Module, data: Tensor) -> float:
    """The loss over fresh data; rank 0 gets the mean of all ranks."""
    with torch.no_grad():
        loss = F.mse_loss(model(data), data.flip(1))
    dist.reduce(loss, dst=0)
    return loss.item() / dist.get_world_size()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    generator = torch.Generator().manual_seed(60 + rank)
    keeper = BestKeeper(Path(tempfile.mkdtemp(prefix="best-")))
    for epoch in range(EPOCHS):
        for _ in range(STEPS):
            batch = torch.randn(8, 16, generator=generator)
            loss = F.mse_loss(model(batch), batch.flip(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss = validation_loss(model, torch.randn(4, 16, generator=generator))
        onset.mark_latest()
        keeper.offer(model, loss)
        if rank == 0:
            print(f"epoch {epoch}: {loss:.4f}, best {keeper.best:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
