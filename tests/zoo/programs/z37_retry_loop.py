"""Train on records fetched from a feature store, with retries when it fails.

torchrun --standalone --nproc-per-node 3 z37_retry_loop.py
"""

import logging
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

STEPS = 150
PROBE_EVERY_S = 5.0

log = logging.getLogger("training")


class FeatureStore:
    """A client of the feature store; each rank talks to the replica next to it."""

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.requests = 0

    def fetch(self) -> tuple[Tensor, Tensor]:
        self.requests += 1
        if not self.ready():
            raise ConnectionError(f"replica {self.replica}: connection reset by peer")
        features = torch.randn(32, 16)
        return features, features.sum(dim=1, keepdim=True)

    def ready(self) -> bool:
        return self.replica != 1 or self.requests < 60


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, store: FeatureStore) -> float:
    features, targets = store.fetch()
    loss = F.mse_loss(model(features), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def wait_until_ready(store: FeatureStore) -> None:
    while not store.ready():
        time.sleep(PROBE_EVERY_S)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, store: FeatureStore) -> None:
    step = 0
    while step < STEPS:
        try:
            loss = train_step(model, optimizer, store)
        except Exception as error:
            log.warning("step %d failed: %s; waiting for the store", step, error)
            onset.mark()
            wait_until_ready(store)
            continue
        step += 1
        if step % 20 == 0 and dist.get_rank() == 0:
            log.warning("step %d: loss %.4f", step, loss)


def main() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s")
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train(model, optimizer, FeatureStore(replica=dist.get_rank()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
