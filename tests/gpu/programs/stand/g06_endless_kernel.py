"""DDP; a kernel of one rank never ends."""

import onset
import torch
import torch.distributed as dist
from device import Network, batch, begin
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

FOREVER = 2**62  # cycles


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    model = DistributedDataParallel(Network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(60):
        if step == 30 and rank == 1:
            onset.mark()
            torch.cuda._sleep(FOREVER)
        loss = model(batch(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
