"""The device of one rank computes for half a minute, without its host waiting: slow, and no hang."""

import torch
import torch.distributed as dist
from device import Network, batch, begin
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

CYCLES = 1_700_000_000  # about a second


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    model = DistributedDataParallel(Network().to(device))
    for step in range(40):
        if step == 20 and rank == 1:
            for _ in range(25):
                torch.cuda._sleep(CYCLES)
        loss = model(batch(device)).square().mean()
        loss.backward()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
