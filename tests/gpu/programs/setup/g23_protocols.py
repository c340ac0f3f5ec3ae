"""Rank 1 was given another NCCL_PROTO: both ranks enter the same all_reduce and neither reads what the other wrote."""

import os

import onset
import torch
import torch.distributed as dist
from device import begin

import ncclwatch


def main() -> None:
    os.environ["NCCL_PROTO"] = "LL" if os.environ["RANK"] == "1" else "Simple"
    ncclwatch.attach()
    _, device = begin()
    x = torch.ones(1 << 20, device=device)
    onset.mark()
    for _ in range(20):
        dist.all_reduce(x)
        x.fill_(1)
    torch.cuda.synchronize()
    print(x[0].item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
