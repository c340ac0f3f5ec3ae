"""DDP; one rank is stopped by a signal."""

import os
import signal

import onset
import torch
import torch.distributed as dist
from device import Network, batch, begin
from torch.nn.parallel import DistributedDataParallel

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    model = DistributedDataParallel(Network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(60):
        loss = model(batch(device)).square().mean()
        optimizer.zero_grad()
        if step == 30 and rank == 2:
            onset.mark()
            os.kill(os.getpid(), signal.SIGSTOP)
        loss.backward()
        optimizer.step()
    print(loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
