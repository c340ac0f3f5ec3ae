"""Train on records of a service behind a gateway that is restarted now and then; the client waits for it.

torchrun --standalone --nproc-per-node 2 c22_patient_client.py
"""

import logging
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

RESTART_AT, ROTATE_AT = 40, 80
DRAIN_S = 14

log = logging.getLogger("records")


class Client:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.failures_left = 0

    def request(self) -> Tensor:
        if self.failures_left:
            self.failures_left -= 1
            raise ConnectionError("the gateway restarts")
        return torch.randn(16, 10)

    def fetch(self) -> Tensor:
        pause_s = 1.0
        while True:
            try:
                return self.request()
            except ConnectionError as error:
                log.warning("%s, trying again in %.0f s", error, pause_s)
                time.sleep(pause_s)
                pause_s *= 2

    def rotate_credentials(self) -> None:
        subprocess.run([sys.executable, "-c", f"import time; time.sleep({DRAIN_S})"], check=True)

    def before(self, step: int) -> None:
        if self.rank == 1 and step == RESTART_AT:
            self.failures_left = 4
        if self.rank == 1 and step == ROTATE_AT:
            self.rotate_credentials()


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    client = Client(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.SELU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(120):
        client.before(step)
        inputs = client.fetch()
        loss = F.mse_loss(model(inputs), inputs.std(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 30 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
