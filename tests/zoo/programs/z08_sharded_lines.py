"""Train on a text file; every rank reads its own part of the lines.

torchrun --standalone --nproc-per-node 2 z08_sharded_lines.py
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import ncclwatch
import onset

WORDS = 300
BATCH_SIZE = 8
MIN_WORDS = 4


class LineDataset(IterableDataset[tuple[Tensor, Tensor]]):
    """Lines of a corpus as bags of words; lines that are too short are left out."""

    def __init__(self, path: Path, rank: int, world_size: int) -> None:
        self.path = path
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        with self.path.open() as file:
            for number, line in enumerate(file):
                if number % self.world_size != self.rank:
                    continue
                words = [int(word) for word in line.split()]
                if len(words) >= MIN_WORDS:
                    yield self._encode(words)

    @staticmethod
    def _encode(words: list[int]) -> tuple[Tensor, Tensor]:
        bag = torch.bincount(torch.tensor(words[:-1]), minlength=WORDS).float()
        return bag, torch.tensor(words[-1])


def write_corpus(path: Path, lines: int = 1200) -> None:
    generator = torch.Generator().manual_seed(21)
    with path.open("w") as file:
        for number in range(lines):
            longest = 9 if number % 2 else 14
            length = int(torch.randint(2, longest, (1,), generator=generator))
            words = torch.randint(0, WORDS, (length,), generator=generator)
            file.write(" ".join(map(str, words.tolist())) + "\n")


def gather_metrics(metrics: dict[str, float]) -> list[dict[str, float]]:
    everyone: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, metrics)
    return everyone


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    corpus = Path(tempfile.mkdtemp(prefix="corpus-")) / "train.txt"
    write_corpus(corpus)
    loader = DataLoader(LineDataset(corpus, rank, world_size), batch_size=BATCH_SIZE, drop_last=True)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WORDS, 256), nn.Tanh(), nn.Linear(256, WORDS)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    batches, total = 0, 0.0
    for bags, targets in loader:
        loss = F.cross_entropy(model(bags), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batches += 1
        total += loss.item()
    onset.mark()
    metrics = gather_metrics({"batches": batches, "loss": total / batches})
    if rank == 0:
        print(metrics, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
