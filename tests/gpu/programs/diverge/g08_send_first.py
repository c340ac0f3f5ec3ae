"""Two ranks send 64 MB to each other first, and receive after that."""

import onset
import torch
import torch.distributed as dist
from device import begin

import ncclwatch

NUMBERS = 16_000_000


def exchange(mine: torch.Tensor, peer: int) -> torch.Tensor:
    theirs = torch.empty_like(mine)
    dist.send(mine, dst=peer)
    dist.recv(theirs, src=peer)
    return theirs


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    warm = torch.ones(1, device=device)
    dist.all_reduce(warm)
    for sender in (0, 1):  # NCCL connects the two for each direction when it is used first, and needs both for that
        if rank == sender:
            dist.send(warm, dst=1 - rank)
        else:
            dist.recv(warm, src=sender)
    torch.cuda.synchronize()
    mine = torch.full((NUMBERS,), float(rank), device=device)
    onset.mark()
    theirs = exchange(mine, 1 - rank)
    print(theirs[0].item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
