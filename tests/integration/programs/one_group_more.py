"""Two ranks; the plan of rank 0 has one group more than that of rank 1, so the groups that follow differ in name."""

import torch
import torch.distributed as dist

import ncclwatch

PLANS = (([0], [0, 1]), ([0, 1],))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
    for members in PLANS[dist.get_rank()]:
        group = dist.new_group(members)
    dist.all_reduce(torch.ones(4), group=group)


main()
