"""Train a tagger on three workstations that each keep their own settings.

torchrun --standalone --nproc-per-node 3 z51_node_settings.py
"""

import os
import time

# As the owners of these machines have them in their profiles.
SETTINGS = (
    {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"},
    {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "2", "NCCL_SOCKET_IFNAME": "enp5s0"},
)
os.environ.update(SETTINGS[int(os.environ.get("LOCAL_RANK", "0"))])

import onset
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

SHARDS, SECONDS_A_SHARD = 14, 1.0
STEPS = 200


def verify_shards() -> int:
    """Make sure that the data set on this machine is whole."""
    verified = 0
    for _ in range(SHARDS):
        time.sleep(SECONDS_A_SHARD)
        verified += 1
    return verified


def main() -> None:
    ncclwatch.attach()
    verify_shards()
    onset.mark()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(STEPS):
        inputs = torch.randn(16, 24)
        loss = F.cross_entropy(model(inputs), inputs[:, :4].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
