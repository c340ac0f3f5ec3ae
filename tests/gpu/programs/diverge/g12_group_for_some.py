"""Communicators are made at once (`device_id`), and one rank leaves a new_group out."""

import onset
import torch
import torch.distributed as dist
from device import begin

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    rank, device = begin(eager=True)
    x = torch.ones(1024, device=device)
    for _ in range(10):
        dist.all_reduce(x)
        x.fill_(1)
    torch.cuda.synchronize()
    onset.mark()
    if rank != 1:
        dist.new_group()
    for _ in range(10):
        dist.all_reduce(x)
    print(x[0].item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
