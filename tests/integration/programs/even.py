"""Loops over even_batches: ranks with loaders of random lengths, speeds and workers say how many batches they got.

even.py <seed>: prints one JSON list of [what, batches] at the end.
"""

import json
import random
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset

import ncclwatch
from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.ring.layout import LoaderFlag
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank import attach
from ncclwatch.rank.remedies.even_batches import LoaderFailedError


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, count: int, pauses: random.Random, fails_at: int = -1) -> None:
        self.count, self.pauses, self.fails_at = count, pauses, fails_at

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self.count):
            if self.pauses.random() < 0.1:
                time.sleep(0.002)
            if index == self.fails_at:
                raise ValueError(f"sample {index} is broken")
            yield torch.tensor(index)


def loop(loader: object, every: int, stop_at: int = -1) -> int:
    """Train: a collective for each batch, as DDP has them."""
    done = 0
    for _ in ncclwatch.even_batches(loader, every=every):
        dist.all_reduce(torch.ones(1))
        done += 1
        if done == stop_at:
            break
    return done


def random_epochs(seed: int, rank: int, found: list[list[object]]) -> None:
    """The same draws of the seed on all ranks say what kind of loader it is; those of the rank, how long."""
    shared, own = random.Random(seed), random.Random(1000 * seed + rank)
    for number in range(6):
        every = shared.choice((1, 2, 3, 8, 16))
        if shared.random() < 0.5:
            loader: object = DataLoader(Stream(own.randint(0, 40), own), batch_size=None)
        else:
            loader = [torch.zeros(1)] * own.randint(0, 40)
        found.append([f"epoch {number}", len(loader) if isinstance(loader, list) else loader.dataset.count])
        found.append([f"epoch {number}", loop(loader, every)])


def with_workers(rank: int, found: list[list[object]]) -> None:
    """Worker processes that live on, for two epochs; rank 1 has fewer batches and none of them."""
    workers = 2 if rank == 0 else 0
    loader = DataLoader(Numbers(40 - 9 * rank), batch_size=2, num_workers=workers, persistent_workers=workers > 0)
    for epoch in range(2):
        found.append([f"workers {epoch}", loop(loader, 4)])


def nested(rank: int, found: list[list[object]]) -> None:
    """A loop in a loop, each with its own end."""
    inner = [loop([0] * (5 + rank), 2) for _ in ncclwatch.even_batches([0] * (4 - rank), every=2)]
    found.append(["nested", len(inner), *inner])


def left_early(rank: int, found: list[list[object]]) -> None:
    """All leave at one batch; then one alone, while no collective of the user ties the others to it."""
    found.append(["break", loop([0] * 30, 4, stop_at=11)])
    found.append(["after", loop([0] * (20 + rank), 4)])
    for number, _ in enumerate(ncclwatch.even_batches([0] * 40, every=4)):
        if rank == 0 and number == 9:
            break
    found.append(["after one left", loop([0] * (20 + rank), 4)])


def broken(rank: int, found: list[list[object]]) -> None:
    """The loader of rank 1 raises at its eleventh batch."""
    done = 0
    try:
        for _ in ncclwatch.even_batches(DataLoader(Stream(30, random.Random(1), 10 if rank else -1), batch_size=None)):
            dist.all_reduce(torch.ones(1))
            done += 1
    except (ValueError, LoaderFailedError) as error:
        found.append(["broken", done, type(error).__name__])


def accumulated(rank: int, found: list[list[object]]) -> None:
    """A collective for every third batch only."""
    done = 0
    for _ in ncclwatch.even_batches([0] * (20 - 5 * rank)):
        done += 1
        if done % 3 == 0:
            dist.all_reduce(torch.ones(1))
    found.append(["accumulated", done])


def recorded(rank: int, found: list[list[object]]) -> None:
    """What the ring says: the pass is marked, ended, and has as many batches as were trained on."""
    loop(DataLoader(Numbers(21 + 5 * rank), batch_size=2), 4)
    ring = attach.current().ring
    with Ring(ring.path) as reader:
        row = reader.loaders()[0]  # the line of `loop` was the first to iterate
        found.append(["recorded", row.last_drawn, row.ended_pass == row.passes, bool(row.flags & LoaderFlag.EVEN)])
        found.append(["loops", len(reader.loaders())])
        found.append(["group", [group.desc for group in reader.groups() if "even" in group.desc]])


def cost(found: list[list[object]]) -> None:
    """Microseconds a batch: of a plain list, and of the same with even_batches."""
    batches = [0] * 4000

    def plain() -> None:
        for _ in batches:
            pass

    def even() -> None:
        for _ in ncclwatch.even_batches(batches):
            pass

    even()
    for name, run in (("plain", plain), ("even", even)):
        began = time.perf_counter()
        run()
        found.append([f"cost {name}", round((time.perf_counter() - began) / len(batches) * 1e6, 2)])


def destroyed(found: list[list[object]]) -> None:
    dist.destroy_process_group()
    try:
        loop([0], 1)
    except NcclwatchError as error:
        found.append(["destroyed", str(error)])


def main() -> None:
    seed = int(sys.argv[1])
    found: list[list[object]] = [["alone", len(list(ncclwatch.even_batches([1, 2, 3])))]]
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random_epochs(seed, rank, found)
    if rank < 2 and dist.get_world_size() == 2:
        with_workers(rank, found)
        nested(rank, found)
        left_early(rank, found)
        broken(rank, found)
        accumulated(rank, found)
        recorded(rank, found)
        cost(found)
    dist.barrier()
    destroyed(found)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
