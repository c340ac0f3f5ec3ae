"""Train an autoencoder with residual vector quantisation; the first rank draws samples as it goes.

torchrun --standalone --nproc-per-node 2 s004_sync_seed.py
"""

import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

STEPS, SAMPLE_EVERY = 200, 45


def maybe_synced_seed(maximum: int = 10_000) -> int:
    """Return a random seed, the same on all ranks of a distributed run."""
    seed = torch.randint(0, maximum, ())
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(seed)
    return int(seed)


class ResidualQuantizer(nn.Module):
    """Each level quantises what the levels before it left over; in training the last ones may be dropped."""

    def __init__(self, width: int, levels: int = 4, codes: int = 32, quantize_dropout: bool = True) -> None:
        super().__init__()
        self.codebooks = nn.ParameterList(nn.Parameter(torch.randn(codes, width)) for _ in range(levels))
        self.quantize_dropout = quantize_dropout

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        keep = len(self.codebooks)
        if self.training and self.quantize_dropout:
            keep = random.Random(maybe_synced_seed()).randint(1, keep)
        quantized, commitment = torch.zeros_like(hidden), hidden.new_zeros(())
        for level, codebook in enumerate(self.codebooks):
            rest = hidden - quantized.detach()
            nearest = codebook[torch.cdist(rest, codebook).argmin(dim=1)]
            weight = 1.0 if level < keep else 0.0
            commitment = commitment + weight * F.mse_loss(nearest, rest.detach())
            quantized = quantized + weight * nearest
        return hidden + (quantized - hidden).detach(), commitment


class Codec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(40, 16)
        self.quantize = ResidualQuantizer(16)
        self.decode = nn.Linear(16, 40)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        quantized, commitment = self.quantize(self.encode(frames))
        return self.decode(quantized), commitment


@torch.no_grad()
def sample(codec: Codec, frames: Tensor) -> float:
    """Decode some frames and say how good they sound."""
    decoded, _ = codec(frames)
    return 10 * torch.log10(frames.square().mean() / (decoded - frames).square().mean()).item()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(Codec())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(1, STEPS + 1):
        frames = torch.randn(32, 40).cumsum(dim=1)
        decoded, commitment = model(frames)
        loss = F.l1_loss(decoded, frames) + 0.25 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAMPLE_EVERY == 0 and rank == 0:
            onset.mark()
            print(f"step {step}: {sample(model.module, frames):.1f} dB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
