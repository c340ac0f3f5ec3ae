"""One of two workers of Ray Train meets a barrier alone. No callback of ncclwatch."""

import sys
import tempfile

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

import ncclwatch


def train() -> None:
    ncclwatch.attach()
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(200):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 12 and dist.get_rank() == 1:
            dist.barrier()


def main() -> None:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _temp_dir=tempfile.gettempdir())
    TorchTrainer(
        train,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=sys.argv[1]),
    ).fit()


if __name__ == "__main__":
    main()
