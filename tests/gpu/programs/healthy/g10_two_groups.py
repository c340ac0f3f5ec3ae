"""Two groups are used in one order by half of the ranks and in the other by the rest: NCCL does not mind."""

import torch
import torch.distributed as dist
from device import begin

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    dense, sparse = dist.new_group(), dist.new_group()
    weights, counts = torch.ones(4096, device=device), torch.ones(64, device=device)
    for group, tensor in ((dense, weights), (sparse, counts)):
        dist.all_reduce(tensor, group=group)
        torch.cuda.synchronize()
    for step in range(40):
        crossed = step >= 20 and rank == 1
        pairs = [(dense, weights), (sparse, counts)]
        handles = [
            dist.all_reduce(tensor, group=group, async_op=True)
            for group, tensor in (reversed(pairs) if crossed else pairs)
        ]
        for handle in handles:
            assert handle is not None
            handle.wait()
        print(step, counts[0].item(), flush=True)
        weights.fill_(1)
        counts.fill_(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
