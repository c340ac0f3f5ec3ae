"""Train on pairs of ranks; the last rank only measures, and takes part in the metrics of all.

torchrun --standalone --nproc-per-node 4 z66_pairs_of_trainers.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import ncclwatch
import onset

STEPS = 40
PAIR_FROM = 20


def own_pair() -> "dist.ProcessGroup | None":
    """Make all pairs and return that of this rank."""
    own = None
    for first in range(0, dist.get_world_size(), 2):
        group = dist.new_group([first, first + 1])
        own = group if dist.get_rank() in (first, first + 1) else own
    return own


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = nn.Linear(20, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    pair, measures = None, rank == world - 1
    for step in range(STEPS):
        if step == PAIR_FROM and not measures:
            onset.mark_latest()
            pair = own_pair()
        inputs = torch.randn(16, 20)
        loss = F.cross_entropy(model(inputs), inputs[:, :4].argmax(dim=1))
        if not measures:
            optimizer.zero_grad()
            loss.backward()
            if pair is not None:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, group=pair)
            optimizer.step()
        metric = loss.detach()
        dist.all_reduce(metric)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
