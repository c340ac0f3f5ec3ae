"""Train on records of a remote service that fails at times; requests are repeated, later and later.

torchrun --standalone --nproc-per-node 2 c13_backoff.py
"""

import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

log = logging.getLogger("records")


class Records:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.requests = 0

    def request(self) -> Tensor:
        self.requests += 1
        if self.rank == 1 and 70 <= self.requests < 74:
            raise TimeoutError("the service did not answer")
        return torch.randn(16, 10)

    def fetch(self) -> Tensor:
        pause_s = 0.5
        while True:
            try:
                return self.request()
            except TimeoutError as error:
                log.warning("%s, trying again in %.1f s", error, pause_s)
                time.sleep(pause_s)
                pause_s *= 2


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    records = Records(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.SELU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(150):
        inputs = records.fetch()
        loss = F.mse_loss(model(inputs), inputs.std(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 30 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
