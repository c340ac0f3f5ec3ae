"""Train a regression model; steps whose loss is not finite are left out.

torchrun --standalone --nproc-per-node 3 z16_skip_nan.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset


def measurements(count: int = 3600) -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(count, 24, generator=generator)
    targets = inputs.square().mean(dim=1, keepdim=True)
    # One sensor reading of the raw data is broken.
    inputs[1210, 3] = float("nan")
    return TensorDataset(inputs, targets)


def train_one_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> tuple[float, int]:
    total, skipped = 0.0, 0
    for inputs, targets in loader:
        loss = F.mse_loss(model(inputs), targets)
        if not torch.isfinite(loss):
            skipped += 1
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / (len(loader) - skipped), skipped


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = measurements()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=12, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(24, 128), nn.SiLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(5):
        sampler.set_epoch(epoch)
        loss, skipped = train_one_epoch(model, loader, optimizer)
        onset.mark()
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.5f}, skipped {skipped}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
