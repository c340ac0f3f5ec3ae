"""Train a sharded language model and checkpoint it with torch.distributed.checkpoint.

torchrun --standalone --nproc-per-node 2 z06_checkpoint_api.py
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

import ncclwatch
import onset

WORDS, WIDTH = 128, 32
STEPS, SAVE_EVERY = 120, 40


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.recur = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.predict = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.predict(self.recur(self.embed(tokens))[0])


def checkpoint(model: nn.Module, directory: Path, step: int) -> None:
    state = {"model": get_model_state_dict(model), "step": step}
    if dist.get_rank() == 0:
        onset.mark()
        dcp.save(state, checkpoint_id=directory / f"step-{step}")
    dist.barrier()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Reader()
    fully_shard(model.predict)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    directory = Path(tempfile.mkdtemp(prefix="reader-"))
    torch.manual_seed(dist.get_rank())
    for step in range(1, STEPS + 1):
        tokens = torch.randint(0, WORDS, (8, 13))
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAVE_EVERY == 0:
            checkpoint(model, directory, step)
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
