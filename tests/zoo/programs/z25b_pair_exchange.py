"""Solve a heat equation on three ranks; neighbours share their borders in groups of two.

torchrun --standalone --nproc-per-node 3 z25b_pair_exchange.py
"""

import torch
import torch.distributed as dist
from torch import Tensor

import ncclwatch
import onset

CELLS = 4000
STEPS = 400
REBALANCE_AT = 120

PAIRS = ((0, 1), (0, 2), (1, 2))


class Neighbours:
    """The groups of a rank with the two others on the ring."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        groups = {pair: dist.new_group(pair) for pair in PAIRS}
        self.mine = {pair: group for pair, group in groups.items() if self.rank in pair}

    def exchange(self, border: Tensor) -> Tensor:
        """Average the border with each neighbour."""
        result = torch.zeros_like(border)
        for group in self.mine.values():
            shared = border.clone()
            dist.all_reduce(shared, group=group)
            result += shared / 4
        return result

    def rebalance(self, load: Tensor) -> Tensor:
        """Hand on the load: first to the right, then take from the left."""
        right, left = (self.rank + 1) % 3, (self.rank - 1) % 3
        for other in (right, left):
            pair = (min(self.rank, other), max(self.rank, other))
            dist.all_reduce(load, group=self.mine[pair])
            load /= 2
        return load


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    neighbours = Neighbours()
    cells = torch.rand(CELLS, generator=torch.Generator().manual_seed(rank))
    load = torch.tensor([float(CELLS * (rank + 1))])

    for step in range(1, STEPS + 1):
        border = neighbours.exchange(cells[[0, -1]])
        padded = torch.cat([border[1:], cells, border[:1]])
        cells = cells + 0.1 * (padded[2:] - 2 * cells + padded[:-2])
        if step % REBALANCE_AT == 0:
            onset.mark()
            load = neighbours.rebalance(load)
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: mean temperature {cells.mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
