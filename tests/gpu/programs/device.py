"""Gives each rank a device, also where there are fewer devices than ranks."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH = 256
BATCH = 64


def begin(*, eager: bool = False, **options: Any) -> tuple[int, torch.device]:
    """Join the job over NCCL. Returns this rank and its device.

    NCCL refuses two ranks of one host on one device. Where devices are short, each rank is a host of its own to NCCL:
    they talk over sockets, and their kernels take turns on the device.
    """
    local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if int(os.environ["LOCAL_WORLD_SIZE"]) > count:
        os.environ.update(NCCL_HOSTID=f"rank-{local}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    device = torch.device("cuda", local % count)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device if eager else None, **options)
    torch.manual_seed(dist.get_rank())
    return dist.get_rank(), device


class Network(nn.Module):
    """A few layers, so that DDP has more than one bucket."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        return hidden


def batch(device: torch.device) -> Tensor:
    """Return random features."""
    return torch.randn(BATCH, WIDTH, device=device)
