"""Train while a health check looks after the host's accelerator driver.

torchrun --standalone --nproc-per-node 3 z39_quiet_exit.py
"""

import os
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset


class HealthCheck(threading.Thread):
    """Leaves at once when the host is to be taken out of service."""

    def __init__(self, local_rank: int) -> None:
        super().__init__(name="health-check", daemon=True)
        self.local_rank = local_rank
        self.beats = 0

    def in_service(self) -> bool:
        return self.local_rank != 2 or self.beats < 30

    def run(self) -> None:
        while self.in_service():
            self.beats += 1
            time.sleep(0.1)
        onset.mark()
        os._exit(0)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    HealthCheck(int(os.environ["LOCAL_RANK"])).start()
    for step in range(6000):
        inputs = torch.randn(64, 40)
        loss = F.mse_loss(model(inputs), inputs.amax(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 200 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
