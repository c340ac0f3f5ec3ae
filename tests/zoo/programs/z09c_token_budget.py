"""Train on sentences of unequal length, in batches of at most so many tokens.

torchrun --standalone --nproc-per-node 4 z09c_token_budget.py
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import ncclwatch
import onset

SENTENCES_PER_RANK = 240
LONGEST = 40
TOKEN_BUDGET = 160
VOCABULARY = 250
EPOCHS = 3
SEED = 2156


class TokenBudgetBatches(IterableDataset[Tensor]):
    """Fills each batch with the rank's next sentences until its tokens are used up."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.epoch = 0

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(SEED + 1000 * self.epoch + self.rank)
        lengths = torch.randint(2, LONGEST, (SENTENCES_PER_RANK,), generator=generator)
        batch: list[Tensor] = []
        used = 0
        for length in lengths.tolist():
            if used + length > TOKEN_BUDGET:
                yield nn.utils.rnn.pad_sequence(batch, batch_first=True)
                batch, used = [], 0
            batch.append(torch.randint(1, VOCABULARY, (length,), generator=generator))
            used += length
        yield nn.utils.rnn.pad_sequence(batch, batch_first=True)


class NextToken(nn.Module):
    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.state = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.state(self.embed(tokens))[0])


def train_one_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> Tensor:
    statistics = torch.zeros(2)
    for tokens in loader:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        statistics += torch.tensor([loss.item(), 1.0])
    return statistics


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    batches = TokenBudgetBatches(rank)
    loader = DataLoader(batches, batch_size=None)
    model = DistributedDataParallel(NextToken())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(EPOCHS):
        batches.epoch = epoch
        statistics = train_one_epoch(model, loader, optimizer)
        gathered = [torch.zeros(2) for _ in range(world_size)]
        if epoch:
            onset.mark()
        dist.all_gather(gathered, statistics)
        total, count = torch.stack(gathered).sum(dim=0).tolist()
        if rank == 0:
            print(f"epoch {epoch}: loss {total / count:.4f} in {count:.0f} batches", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
