"""Train a sequence model; a batch that does not fit into memory is skipped, as fairseq did.

torchrun --standalone --nproc-per-node 2 z17_out_of_memory.py
"""

import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

log = logging.getLogger(__name__)
STEPS, SYNC_EVERY = 200, 50


class Attention(nn.Module):
    """Self-attention whose scores must fit into what is left of the memory."""

    def __init__(self, width: int = 32, scores_max: int = 300 * 300) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.scores_max = scores_max

    def forward(self, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        if length * length > self.scores_max:
            raise RuntimeError(f"out of memory: tried to allocate {4 * length * length} bytes")
        query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(query, key, value)


def lengths(rank: int) -> list[int]:
    found = torch.randint(20, 90, (STEPS,), generator=torch.Generator().manual_seed(rank)).tolist()
    if rank == 1:
        found[STEPS // 4 - 1] = 512
    return found


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.skipped = 0

    def train_step(self, inputs: Tensor) -> None:
        try:
            loss = F.mse_loss(self.model(inputs), inputs.cumsum(dim=1) / inputs.shape[1])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            onset.mark()
            log.warning("ran out of memory, skipping the batch")
            self.skipped += 1


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    trainer = Trainer(DistributedDataParallel(Attention()))
    for step, length in enumerate(lengths(rank), start=1):
        trainer.train_step(torch.randn(4, length, 32))
        if step % SYNC_EVERY == 0:
            dist.barrier()
            if rank == 0:
                print(f"step {step}: skipped {trainer.skipped}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
