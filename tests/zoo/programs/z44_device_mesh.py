"""Replicate and shard over a 2 x 2 mesh; the last rank only evaluates.

torchrun --standalone --nproc-per-node 4 z44_device_mesh.py
"""

import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import ncclwatch

ROUNDS = 18
STEPS_PER_ROUND = 40
EVALUATOR = 3


def make_pairs() -> dict[tuple[int, int], dist.ProcessGroup]:
    """One group for every pair of ranks, for exchanging experts later on."""
    pairs = itertools.combinations(range(dist.get_world_size()), 2)
    return {pair: dist.new_group(list(pair)) for pair in pairs}


def average(tensor: Tensor, group: dist.ProcessGroup) -> None:
    dist.all_reduce(tensor, group=group)
    tensor /= dist.get_world_size(group)


def train_round(network: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh, pairs: dict) -> None:
    """Rank 0 shards with rank 1 and is replicated on rank 2."""
    rank = dist.get_rank()
    for _ in range(STEPS_PER_ROUND):
        inputs = torch.randn(128, 64)
        loss = F.mse_loss(network(inputs), inputs.cumsum(dim=1))
        optimizer.zero_grad()
        loss.backward()
        for parameter in network.parameters():
            if rank in (0, 1):
                average(parameter.grad, mesh.get_group("shard"))
            if rank in (0, 2):
                average(parameter.grad, mesh.get_group("replicate"))
        if rank in (1, 2):
            dist.all_reduce(loss.detach(), group=pairs[1, 2])
        optimizer.step()


def evaluate(network: nn.Module) -> float:
    with torch.no_grad():
        losses = [F.mse_loss(network(x), x.cumsum(dim=1)).item() for x in torch.randn(50, 128, 64)]
    return sum(losses) / len(losses)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    pairs = make_pairs()
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    for number in range(ROUNDS):
        for parameter in network.parameters():
            dist.broadcast(parameter.data, src=0)
        if rank == EVALUATOR:
            print(f"round {number}: evaluation loss {evaluate(network):.4f}", flush=True)
        else:
            train_round(network, optimizer, mesh, pairs)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
