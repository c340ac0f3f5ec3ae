"""Rank 0 alone saves a DeepSpeed checkpoint, which meets all ranks. No mark of ncclwatch."""

import sys

import deepspeed
import deepspeed.ops
import torch

import ncclwatch

CONFIG = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}


def main() -> None:
    deepspeed.ops.__compatible_ops__.clear()  # else it compiles a shared-memory op for a minute
    ncclwatch.attach()
    deepspeed.init_distributed(dist_backend="gloo")
    module = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=CONFIG)
    for step in range(200):
        loss = engine(torch.randn(4, 8)).square().mean()
        engine.backward(loss)
        engine.step()
        if step == 12 and engine.global_rank == 0:
            engine.save_checkpoint(sys.argv[1], tag=f"step{step}")


if __name__ == "__main__":
    main()
