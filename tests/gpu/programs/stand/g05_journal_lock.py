"""DDP; one rank takes a lock twice. The others read nothing, and run ahead until their launch queue is full."""

import threading

import onset
import torch
import torch.distributed as dist
from device import Network, batch, begin
from torch.nn.parallel import DistributedDataParallel

import ncclwatch


class Journal:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def rotate(self) -> None:
        with self.lock:
            self.write("rotated")

    def write(self, line: str) -> None:
        with self.lock:
            print(line, flush=True)


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    model = DistributedDataParallel(Network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    journal = Journal()
    for step in range(100):
        loss = model(batch(device)).square().mean()
        optimizer.zero_grad()
        if step == 30 and rank == 1:
            onset.mark()
            journal.rotate()
        loss.backward()
        optimizer.step()
    print(loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
