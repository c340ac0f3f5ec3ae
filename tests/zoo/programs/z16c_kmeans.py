"""Build a codebook with k-means over the data of all ranks.

torchrun --standalone --nproc-per-node 3 z16c_kmeans.py
"""

import torch
import torch.distributed as dist
from torch import Tensor

import ncclwatch
import onset

CODES = 12
WIDTH = 6
WARM_UP_ROUNDS = 40
TOLERANCE = 0.0022


def features(rank: int, count: int = 6000) -> Tensor:
    generator = torch.Generator().manual_seed(100 + rank)
    centres = torch.randn(CODES, WIDTH, generator=torch.Generator().manual_seed(1)) * 2
    kind = torch.randint(0, CODES, (count,), generator=generator)
    return centres[kind] + torch.randn(count, WIDTH, generator=generator)


def refine(codebook: Tensor, data: Tensor) -> tuple[Tensor, float]:
    """Move every code to the mean of its points on all ranks; return the local error too."""
    distances, nearest = torch.cdist(data, codebook).min(dim=1)
    sums = torch.zeros(CODES, WIDTH + 1)
    sums[:, :WIDTH].index_add_(0, nearest, data)
    sums[:, WIDTH] = torch.bincount(nearest, minlength=CODES)
    dist.all_reduce(sums)
    return sums[:, :WIDTH] / sums[:, WIDTH:].clamp(min=1), distances.square().mean().item()


def fit_minibatches(codebook: Tensor, data: Tensor) -> Tensor:
    for begin in range(0, WARM_UP_ROUNDS * 50, 50):
        fresh, _ = refine(codebook, data[begin : begin + 50])
        codebook = 0.98 * codebook + 0.02 * fresh
    return codebook


def fit_until_converged(codebook: Tensor, data: Tensor) -> Tensor:
    error, change = float("inf"), float("inf")
    while change > TOLERANCE:
        codebook, current = refine(codebook, data)
        change = (error - current) / current
        error = current
    return codebook


def usage(codebook: Tensor, data: Tensor) -> Tensor:
    """Count how often each code is used on each rank."""
    counts = torch.bincount(torch.cdist(data, codebook).argmin(dim=1), minlength=CODES)
    everywhere = [torch.zeros_like(counts) for _ in range(dist.get_world_size())]
    onset.mark()
    dist.all_gather(everywhere, counts)
    return torch.stack(everywhere)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    data = features(dist.get_rank())
    codebook = data[:CODES].clone()
    dist.broadcast(codebook, src=0)
    codebook = fit_minibatches(codebook, data)
    codebook = fit_until_converged(codebook, data)
    table = usage(codebook, data)
    if dist.get_rank() == 0:
        print(f"codes are used {table.sum(dim=0).tolist()} times", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
