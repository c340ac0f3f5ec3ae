"""DDP; the barrier after a save is inside `if rank == 0`."""

import tempfile
from pathlib import Path

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
    directory = Path(tempfile.mkdtemp())
    for step in range(60):
        loss = model(batch(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 30 and rank == 0:
            torch.save(model.module.state_dict(), directory / "model.pt")
            onset.mark()
            dist.barrier()
        print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
