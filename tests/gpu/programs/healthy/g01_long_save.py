"""DDP; rank 0 scores and saves for 15 s while the others wait for it at a barrier."""

import hashlib
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from device import Network, batch, begin
from torch.nn.parallel import DistributedDataParallel

import ncclwatch


def score_and_save(model: torch.nn.Module, directory: Path) -> None:
    torch.save(model.state_dict(), directory / "model.pt")
    digest = hashlib.sha256()
    until = time.monotonic() + 15.0
    while time.monotonic() < until:
        digest.update(bytes(1_000_000))


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    model = DistributedDataParallel(Network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as directory:
        for step in range(80):
            loss = model(batch(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(step, loss.item(), flush=True)
            if step == 40:
                if rank == 0:
                    score_and_save(model.module, Path(directory))
                dist.barrier()
    handle = dist.all_reduce(loss.detach(), async_op=True)
    assert handle is not None
    handle.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
