"""Smooth a long signal that is split over the ranks; neighbours exchange the edges of their parts.

torchrun --standalone --nproc-per-node 3 z29_halo_ring.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ncclwatch
import onset
from averaging import average_gradients, broadcast_parameters

PART = 4096
HALO = 8
REFRESH_EVERY = 30


class Smoother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.full((1, 1, 2 * HALO + 1), 1.0 / (2 * HALO + 1)))

    def forward(self, signal: Tensor) -> Tensor:
        return F.conv1d(signal.view(1, 1, -1), self.kernel).flatten()


def exchange(part: Tensor, rank: int, world_size: int) -> Tensor:
    """Return the part with the edges of both neighbours; the signal is periodic."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    from_left, from_right = torch.empty(HALO), torch.empty(HALO)
    dist.send(part[-HALO:].contiguous(), dst=right)
    dist.recv(from_left, src=left)
    dist.send(part[:HALO].contiguous(), dst=left)
    dist.recv(from_right, src=right)
    return torch.cat([from_left, part, from_right])


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    clean = torch.sin(torch.arange(PART) / 50.0 + rank)
    part = clean + 0.3 * torch.randn(PART, generator=generator)
    padded = F.pad(part.view(1, 1, -1), (HALO, HALO), mode="circular").flatten()
    smoother = Smoother()
    broadcast_parameters(smoother)
    optimizer = torch.optim.SGD(smoother.parameters(), lr=1e-3)
    for step in range(1, 241):
        loss = F.mse_loss(smoother(padded), clean)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(smoother)
        optimizer.step()
        if step % REFRESH_EVERY == 0:
            part = clean + 0.3 * torch.randn(PART, generator=generator)
            onset.mark()
            padded = exchange(part, rank, world_size)
    print(f"rank {rank}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
