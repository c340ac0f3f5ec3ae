"""Distil a teacher whose weights a thread of the first rank loads and sends, while the main thread goes ahead.

torchrun --standalone --nproc-per-node 2 c26_weights_from_a_thread.py
"""

import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

WIDTH, STEPS, LOAD_S = 48, 30, 14.0


def load_teacher() -> Tensor:
    time.sleep(LOAD_S)  # from a store that is slow today
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(7))


def send_teacher(target: int) -> None:
    dist.send(load_teacher(), target)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    teacher = torch.zeros(WIDTH, WIDTH)
    if rank == 0:
        threading.Thread(target=send_teacher, args=(1,)).start()
    else:
        dist.recv(teacher, 0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        inputs = torch.randn(16, WIDTH)
        loss = F.mse_loss(model(inputs), inputs @ teacher)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
