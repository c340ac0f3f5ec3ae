"""Train on shards of different lengths under join(), and report from time to time.

torchrun --standalone --nproc-per-node 3 z60_joined_barrier.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

BATCHES, REPORT_EVERY = (60, 40, 60), 10


def report(step: int, loss: torch.Tensor) -> None:
    if step >= min(BATCHES):
        onset.mark()
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with model.join():
        for step in range(1, BATCHES[dist.get_rank()] + 1):
            inputs = torch.randn(8, 32)
            loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % REPORT_EVERY == 0:
                report(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
