"""Train with DDP and share telemetry in a group of its own; spikes of the loss are reported at once.

torchrun --standalone --nproc-per-node 4 z25c_spike_report.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ncclwatch
import onset

REPORT_EVERY = 10
SPIKE = 20.0


class Telemetry:
    """Collects the losses of all ranks without disturbing the gradients."""

    def __init__(self) -> None:
        self.group = dist.new_group()
        self.history: list[Tensor] = []

    def report(self, loss: Tensor) -> None:
        losses = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, loss.detach(), group=self.group)
        self.history.append(torch.stack(losses))


def demand(count: int = 4000) -> TensorDataset:
    generator = torch.Generator().manual_seed(17)
    inputs = torch.randn(count, 28, generator=generator)
    targets = inputs[:, :4].sum(dim=1, keepdim=True)
    targets[2783] = 100.0
    return TensorDataset(inputs, targets)


def train(model: nn.Module, loader: DataLoader, telemetry: Telemetry) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, (inputs, targets) in enumerate(loader, start=1):
        loss = F.mse_loss(model(inputs), targets)
        due = step % REPORT_EVERY == 0
        if due and loss > SPIKE:
            onset.mark()
            telemetry.report(loss)
            due = False
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if due:
            telemetry.report(loss)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = demand()
    loader = DataLoader(dataset, batch_size=10, sampler=DistributedSampler(dataset, shuffle=False))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(28, 90), nn.ReLU(), nn.Linear(90, 1)))
    telemetry = Telemetry()
    train(model, loader, telemetry)
    if dist.get_rank() == 0:
        print(f"mean loss {torch.stack(telemetry.history).mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
