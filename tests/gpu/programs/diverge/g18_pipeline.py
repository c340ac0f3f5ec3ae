"""Three stages; the middle one leaves a microbatch out, and the last one waits for it."""

import onset
import torch
import torch.distributed as dist
from device import begin

import ncclwatch

MICROBATCHES = 30


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    x = torch.ones(4096, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    for number in range(MICROBATCHES):
        if rank > 0:
            dist.recv(x, src=rank - 1)
        if number == 20:
            onset.mark()
        if rank == 1 and number == 20:
            continue
        if rank < 2:
            dist.send(x, dst=rank + 1)
        else:
            print(number, x[0].item(), flush=True)
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    print(total.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
