"""Fine-tune on dialogues where only the answers count; batches without answers are left out.

torchrun --standalone --nproc-per-node 4 z16b_masked_batches.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset
from averaging import average_gradients, broadcast_parameters

VOCABULARY = 120
LENGTH = 10
STEPS = 110


class Dialogues:
    """Tokens and a mask that is set where the assistant speaks."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, VOCABULARY, (4, LENGTH), generator=self.generator)
        begins = torch.randint(0, 14, (4, 1), generator=self.generator)
        return tokens, torch.arange(LENGTH) >= begins


class FineTuner:
    def __init__(self, seed: int) -> None:
        self.data = Dialogues(seed)
        self.network = nn.Sequential(
            nn.Embedding(VOCABULARY, 32), nn.Linear(32, 96), nn.GELU(), nn.Linear(96, VOCABULARY)
        )
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=1e-3)
        self.losses: list[float] = []
        broadcast_parameters(self.network)

    def step(self) -> float | None:
        """Train on one batch; None if nothing in it counts."""
        tokens, mask = self.data.next_batch()
        if not mask[:, 1:].any():
            return None
        logits = self.network(tokens[:, :-1])
        losses = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        loss = (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()
        self.optimizer.zero_grad()
        loss.backward()
        average_gradients(self.network)
        self.optimizer.step()
        return loss.item()

    def run(self) -> dict[str, float]:
        for _ in range(STEPS):
            loss = self.step()
            if loss is not None:
                self.losses.append(loss)
        return {"steps": len(self.losses), "loss": sum(self.losses) / len(self.losses)}


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    summary = FineTuner(seed=20 + rank).run()
    summaries: list[dict[str, float]] = [{}] * dist.get_world_size()
    onset.mark()
    dist.all_gather_object(summaries, summary)
    if rank == 0:
        print(summaries, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
