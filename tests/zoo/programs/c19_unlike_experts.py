"""Train a mixture of experts: each rank keeps an expert of its own, and all share the router and a teacher.

torchrun --standalone --nproc-per-node 3 c19_unlike_experts.py
"""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

WIDTH, STEPS, DISTIL_AT = 32, 60, 20
SECONDS_A_STEP = 0.15
SLOW_RANK, SECONDS_A_LAYER = 1, 1.2  # its disk is slow


class Mixture(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleDict({f"expert_{rank}": nn.Linear(WIDTH, WIDTH * (1 + rank), bias=rank != 1)})
        self.heads = nn.ModuleDict({f"head_{rank}": nn.Linear(WIDTH, 4)})
        self.rank = rank

    def forward(self, inputs: Tensor) -> Tensor:
        routed = self.router(inputs)
        own = self.experts[f"expert_{self.rank}"](routed)
        return self.heads[f"head_{self.rank}"](routed + own[:, :WIDTH])


def teacher(rank: int) -> nn.Module:
    """The teacher is loaded layer by layer."""
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)), nn.Linear(WIDTH, 4))
    for layer in layers[:3]:
        if rank == SLOW_RANK:
            time.sleep(SECONDS_A_LAYER)
        fully_shard(layer)
    return fully_shard(layers)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mixture = Mixture(rank)
    own = [f"experts.{name}" for name, _ in mixture.experts.named_parameters()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(mixture, own)
    model = DistributedDataParallel(mixture)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    guide: nn.Module | None = None
    torch.manual_seed(rank)
    for step in range(STEPS):
        time.sleep(SECONDS_A_STEP)
        if step == DISTIL_AT:
            guide = teacher(rank)
        inputs = torch.randn(16, WIDTH)
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, inputs[:, :4].argmax(dim=1))
        if guide is not None:
            with torch.no_grad():
                target = guide(inputs).softmax(dim=1)
            loss = loss + F.kl_div(outputs.log_softmax(dim=1), target, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
