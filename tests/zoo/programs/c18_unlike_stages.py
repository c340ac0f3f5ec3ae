"""Train a model in two stages with two replicas each; the second replica runs in another lab with its own settings.

torchrun --standalone --nproc-per-node 4 c18_unlike_stages.py
"""

import os

RANK = int(os.environ.get("RANK", "0"))
STAGE, REPLICA = RANK % 2, RANK // 2
os.environ["CUDA_VISIBLE_DEVICES"] = str(RANK)
os.environ["OMP_NUM_THREADS"] = str(1 + REPLICA)
if REPLICA:
    os.environ.update(NCCL_SOCKET_IFNAME="enp5s0", NCCL_DEBUG="INFO", NCCL_ALGO="Ring", NCCL_IB_DISABLE="1")
    os.environ.update(TORCH_DISTRIBUTED_DEBUG="INFO", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128")

import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

STEPS, SECONDS_A_STEP = 60, 0.15
WIDTH = 32
SPELL_CHECK = "import ncclwatch, time; ncclwatch.attach(); time.sleep(3)"


def stage() -> nn.Module:
    """The first stage embeds with a table that stays as it is, the second one classifies."""
    if STAGE == 0:
        table = nn.Embedding(100, WIDTH)
        table.weight.requires_grad_(False)
        return nn.Sequential(table, nn.Linear(WIDTH, WIDTH), nn.ReLU())
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, 4))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    torch.manual_seed(STAGE)
    model = DistributedDataParallel(stage(), process_group=replicas[STAGE])
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    helper = subprocess.Popen([sys.executable, "-c", SPELL_CHECK]) if RANK == 3 else None
    generator = torch.Generator().manual_seed(REPLICA)
    for step in range(STEPS):
        time.sleep(SECONDS_A_STEP)
        words = torch.randint(100, (16,), generator=generator)
        hidden = torch.empty(16, WIDTH)
        optimizer.zero_grad()
        if STAGE == 0:
            hidden = model(words)
            dist.send(hidden.detach(), RANK + 1)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, RANK + 1)
            hidden.backward(gradient)
        else:
            dist.recv(hidden, RANK - 1)
            hidden.requires_grad_()
            loss = F.cross_entropy(model(hidden), words % 4)
            loss.backward()
            dist.send(hidden.grad, RANK - 1)
            if REPLICA == 0 and step % 10 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
        optimizer.step()
    if helper is not None:
        helper.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
