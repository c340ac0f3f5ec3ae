"""A recommender with sharded embeddings: sparse and dense parts sync over groups of their own.

torchrun --standalone --nproc-per-node 4 z25_two_groups.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset

ROWS = [4000, 4000, 60000, 60000]  # rows of the embedding table on each rank
STEPS = 200
COMPACT_EVERY = 60
LARGE_TABLE = 50000


class Recommender(nn.Module):
    def __init__(self, rows: int, width: int = 16) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, mode="sum")
        self.tower = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, items: Tensor) -> Tensor:
        return self.tower(self.table(items)).squeeze(1)


class Synchroniser:
    """Keeps the towers equal and the popularity statistics of the tables global."""

    def __init__(self, model: Recommender) -> None:
        self.model = model
        self.dense = dist.new_group()
        self.sparse = dist.new_group()
        self.popularity = torch.zeros(256)

    def sync_dense(self) -> None:
        gradients = [p.grad for p in self.model.tower.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self.dense)
        flat /= dist.get_world_size(self.dense)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def sync_sparse(self, items: Tensor) -> None:
        counts = torch.bincount(items.flatten() % 256, minlength=256).float()
        dist.all_reduce(counts, group=self.sparse)
        self.popularity.mul_(0.99).add_(counts)

    def compact(self, items: Tensor) -> None:
        """Large tables drop rarely used rows, which needs the new popularity first."""
        onset.mark()
        if self.model.table.num_embeddings > LARGE_TABLE:
            self.sync_sparse(items)
            self.drop_rare_rows()
            self.sync_dense()
        else:
            self.sync_dense()
            self.sync_sparse(items)

    def drop_rare_rows(self) -> None:
        rare = self.popularity < self.popularity.median() * 0.1
        with torch.no_grad():
            self.model.table.weight[:256][rare] = 0.0


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    rows = ROWS[rank]
    model = Recommender(rows)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    synchroniser = Synchroniser(model)
    generator = torch.Generator().manual_seed(rank)

    for step in range(1, STEPS + 1):
        items = torch.randint(0, rows, (256, 20), generator=generator)
        clicked = torch.rand(256, generator=generator).round()
        loss = F.binary_cross_entropy_with_logits(model(items), clicked)
        optimizer.zero_grad()
        loss.backward()
        if step % COMPACT_EVERY == 0:
            synchroniser.compact(items)
        else:
            synchroniser.sync_dense()
            synchroniser.sync_sparse(items)
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
