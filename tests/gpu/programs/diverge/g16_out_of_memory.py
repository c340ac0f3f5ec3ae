"""One rank runs out of memory, skips the batch, and goes on with the next step."""

import onset
import torch
import torch.distributed as dist
from device import Network, batch, begin
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

TOO_MANY = 2**45


def forward(model: torch.nn.Module, features: torch.Tensor, long: bool) -> torch.Tensor:
    if long:
        features = features + torch.empty(TOO_MANY, device=features.device)[:1]
    return model(features).square().mean()


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    model = DistributedDataParallel(Network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(40):
        try:
            loss = forward(model, batch(device), long=rank == 1 and step == 25)
        except torch.OutOfMemoryError:
            onset.mark()
            print("skipping a batch", flush=True)
            torch.cuda.empty_cache()
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
