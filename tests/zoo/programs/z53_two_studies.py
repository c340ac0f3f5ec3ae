"""Two studies share four ranks: ranks 0 and 1 split a model in two stages, ranks 2 and 3 train a second one.

torchrun --standalone --nproc-per-node 4 z53_two_studies.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

STEPS, TIE_EVERY, REPORT_EVERY = 80, 40, 40


def tie(shared: torch.Tensor, peer: int, group: dist.ProcessGroup) -> None:
    """Both stages hold the embedding; keep the two copies together."""
    theirs = torch.empty_like(shared)
    dist.barrier()
    onset.mark_latest()
    dist.send(shared, dst=peer, group=group)
    dist.recv(theirs, src=peer, group=group)
    shared.add_(theirs).div_(2)


def run_stage(group: dist.ProcessGroup) -> None:
    peer = 1 - dist.get_rank(group)
    shared = torch.randn(256, 256)
    activations, gradients = torch.randn(32, 64), torch.randn(32, 64)
    for step in range(1, STEPS + 1):
        if peer == 1:
            dist.send(activations, dst=peer, group=group)
            dist.recv(gradients, src=peer, group=group)
        else:
            dist.recv(activations, src=peer, group=group)
            dist.send(gradients, dst=peer, group=group)
        if step % TIE_EVERY == 0:
            tie(shared, peer, group)


def report(loss: torch.Tensor, group: dist.ProcessGroup) -> None:
    dist.barrier()
    onset.mark_latest()
    if dist.get_rank() == 3:
        dist.barrier(group=group)
    dist.all_reduce(loss, group=group)


def train(group: dist.ProcessGroup) -> None:
    model = DistributedDataParallel(nn.Linear(20, 4), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, STEPS + 1):
        loss = F.cross_entropy(model(torch.randn(16, 20)), torch.randint(0, 4, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % REPORT_EVERY == 0:
            report(loss.detach(), group)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stages, trainers = dist.new_group([0, 1]), dist.new_group([2, 3])
    study, group = [(run_stage, stages), (run_stage, stages), (train, trainers), (train, trainers)][rank]
    study(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
