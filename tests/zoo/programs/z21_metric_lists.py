"""Train a detector and evaluate it; the metric keeps lists of what it has seen, one per class.

torchrun --standalone --nproc-per-node 3 z21_metric_lists.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

CLASSES = ("car", "cyclist", "pedestrian")


class AveragePrecision:
    """Scores and hits, gathered from all ranks when the value is asked for."""

    def __init__(self) -> None:
        self.states: dict[str, list[Tensor]] = {name: [] for name in CLASSES}

    def update(self, name: str, scores: Tensor, hits: Tensor) -> None:
        self.states[name].append(torch.stack([scores, hits]))

    def _gathered(self, state: list[Tensor]) -> Tensor:
        local = torch.cat(state, dim=1)
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local)
        return torch.cat(parts, dim=1)

    def compute(self) -> dict[str, float]:
        values = {}
        for name, state in self.states.items():
            if not state:
                onset.mark()
                continue
            scores, hits = self._gathered(state)
            ordered = hits[scores.argsort(descending=True)]
            precision = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1)
            values[name] = (precision * ordered).sum().item() / max(ordered.sum().item(), 1.0)
        return values


def scenes(rank: int, epoch: int) -> dict[str, Tensor]:
    """The objects in one rank's part of the evaluation scenes, by class."""
    generator = torch.Generator().manual_seed(10 * epoch + rank)
    counts = {"car": 40, "cyclist": 12, "pedestrian": 20}
    if (rank, epoch) == (2, 1):
        counts["pedestrian"] = 0
    return {name: torch.randn(count, 16, generator=generator) for name, count in counts.items() if count}


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(25):
        inputs = torch.randn(32, 16)
        loss = F.binary_cross_entropy_with_logits(model(inputs), (inputs.sum(dim=1, keepdim=True) > 0).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model: nn.Module, epoch: int) -> dict[str, float]:
    metric = AveragePrecision()
    for name, objects in scenes(dist.get_rank(), epoch).items():
        metric.update(name, model.module(objects).flatten(), (objects.sum(dim=1) > 0).float())
    return metric.compute()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(4):
        train_epoch(model, optimizer)
        values = evaluate(model, epoch)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: " + ", ".join(f"{k} {v:.3f}" for k, v in values.items()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
