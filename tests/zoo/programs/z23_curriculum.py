"""Train with a curriculum: short samples first, then an auxiliary objective in a second phase.

torchrun --standalone --nproc-per-node 4 z23_curriculum.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import ncclwatch
import onset
from averaging import average_gradients, broadcast_parameters

BATCH, SECOND_PHASE = 16, 960


class Problems(Dataset):
    """Sums of numbers; some of the files are damaged."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.damaged = {411, 412, 413} if rank == 1 else set()

    def __getitem__(self, index: int) -> Tensor | None:
        if index in self.damaged:
            return None
        return torch.randn(10, generator=torch.Generator().manual_seed(4 * index + self.rank))


class Curriculum:
    """Counts the samples read so far and says which objective is due."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.position = 0

    def next_batch(self) -> Tensor:
        batch = []
        while len(batch) < BATCH:
            problem = self.problems[self.position]
            self.position += 1
            if problem is not None:
                batch.append(problem)
        return torch.stack(batch)

    @property
    def second_phase(self) -> bool:
        return self.position > SECOND_PHASE


class Calculator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 40), nn.Tanh())
        self.total = nn.Linear(40, 1)
        self.embedding = nn.Linear(40, 8)

    def forward(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(numbers)
        return self.total(hidden), F.normalize(self.embedding(hidden), dim=1)


def spread(embedded: Tensor) -> Tensor:
    """Push the mean embedding of all ranks to the origin."""
    means = [torch.empty(embedded.shape[1]) for _ in range(dist.get_world_size())]
    dist.all_gather(means, embedded.mean(dim=0).detach())
    return (embedded @ torch.stack(means).mean(dim=0)).mean()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Calculator()
    broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    curriculum = Curriculum(Problems(rank))
    for step in range(120):
        numbers = curriculum.next_batch()
        total, embedded = model(numbers)
        loss = F.mse_loss(total, numbers.sum(dim=1, keepdim=True)) + 0.0 * embedded.sum()
        if curriculum.second_phase:
            onset.mark()
            loss = loss + 0.1 * spread(embedded)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if step % 10 == 0:
            gathered = [torch.zeros(()) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, loss.detach())
            if rank == 0:
                print(f"step {step}: {torch.stack(gathered).mean().item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
