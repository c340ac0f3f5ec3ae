"""Train, and let a judge in another process score samples of the first rank after each epoch.

torchrun --standalone --nproc-per-node 2 c05_judged_samples.py
"""

import socket
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

EPOCHS, STEPS = 2, 60
ANSWERS_AFTER_S = (1.0, 9.0)


class Judge:
    """A service that is slower the more it has to do; it answers one number to one line."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, name="judge", daemon=True).start()

    def _serve(self) -> None:
        for seconds in ANSWERS_AFTER_S:
            connection, _ = self.server.accept()
            with connection:
                connection.recv(4096)
                time.sleep(seconds)
                connection.sendall(b"0.5\n")

    def score(self, sample: Tensor) -> float:
        with socket.create_connection(self.server.getsockname()) as connection:
            connection.sendall(repr(sample.tolist()).encode() + b"\n")
            return float(connection.makefile().readline())


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    judge = Judge() if rank == 0 else None
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        for _ in range(STEPS):
            inputs = torch.randn(16, 16)
            loss = F.mse_loss(model(inputs), inputs.roll(1, dims=1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if judge is not None:
            print(f"epoch {epoch}: judged {judge.score(inputs[0]):.2f}", flush=True)
        dist.monitored_barrier(timeout=timedelta(seconds=45))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
