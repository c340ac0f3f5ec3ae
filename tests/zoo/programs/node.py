"""The accelerators of a node, as far as their random states go, for a torch without CUDA."""

import os

import torch


def open_devices(count: int) -> None:
    """Make so many devices visible to this process, and take the one of this rank."""
    torch.cuda.default_generators = tuple(torch.Generator() for _ in range(count))
    torch.cuda.device_count = lambda: count
    torch.cuda.current_device = lambda: int(os.environ["LOCAL_RANK"]) % count
    torch.cuda._initialized = True


def noise(like: torch.Tensor) -> torch.Tensor:
    """Draw noise on this rank's device."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    return torch.randn(like.shape, generator=generator)
