"""Train and keep a journal of samples; a thread of its own ships the journal away.

torchrun --standalone --nproc-per-node 2 f06_lock.py
"""

import queue
import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

SHIP_AT = 60


class Journal:
    """Lines that the training writes and the shipper sends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._receipts: queue.Queue[int] = queue.Queue()
        self._shipping = threading.Event()

    def write(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)

    def ship(self) -> None:
        """Send the lines and wait for the receipt of the collector."""
        with self._lock:
            self._shipping.set()
            sent = len(self._lines)
            while self._receipts.get() < sent:
                pass
            self._lines.clear()

    def ship_in_background(self) -> None:
        threading.Thread(target=self.ship, name="journal-shipper", daemon=True).start()
        self._shipping.wait()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    journal = Journal()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(200):
        inputs = torch.randn(32, 16)
        loss = F.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 1 and step == SHIP_AT:
            journal.ship_in_background()
            onset.mark()
        journal.write(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
