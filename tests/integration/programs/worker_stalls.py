"""Two ranks train; after some batches the loader's worker process of rank 1 reads what never comes."""

import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ncclwatch


class Samples(Dataset):
    """Rows, of which one never comes on rank 1."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 40 and self.rank == 1:
            threading.Event().wait()
        return torch.ones(8)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    for rows in DataLoader(Samples(dist.get_rank()), batch_size=4, num_workers=1):
        model(rows).sum().backward()


if __name__ == "__main__":
    main()
