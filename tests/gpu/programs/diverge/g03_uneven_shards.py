"""DDP over shards of uneven length, then one sum over all ranks."""

import onset
import torch
import torch.distributed as dist
from device import Network, batch, begin
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import ncclwatch

SAMPLES = {0: 320, 1: 296, 2: 320}


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    model = DistributedDataParallel(Network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(SAMPLES[rank], 256)), batch_size=8)
    total = torch.zeros(1, device=device)
    for (features,) in loader:
        loss = model(features.to(device)).square().mean() + 0 * batch(device).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    onset.mark()
    dist.all_reduce(total)
    print("mean", total.item() / dist.get_world_size(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
