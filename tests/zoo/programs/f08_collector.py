"""Train on three ranks; rank 2 keeps the lineage of all samples that it has seen, for a report.

torchrun --standalone --nproc-per-node 3 f08_collector.py
"""

import gc
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

BUDGET_S, NODES = 22.0, 200_000


class Node:
    """A sample and where it comes from."""

    def __init__(self, parent: "Node | None") -> None:
        self.parent = parent
        self.children: list[Node] = []


def lineage() -> list[Node]:
    nodes = [Node(None)]
    for number in range(1, NODES):
        nodes.append(Node(nodes[number // 2]))
        nodes[number // 2].children.append(nodes[-1])
    return nodes


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    reports = dist.get_rank() == 2
    kept = lineage() if reports else []
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dist.barrier()
    onset.mark()
    began, step, over = time.monotonic(), 0, torch.zeros(1)
    while not over.item():
        inputs = torch.randn(64, 32)
        loss = F.mse_loss(model(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if reports:
            kept.append(Node(kept[-1]))
            gc.collect()  # the report needs the memory
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        over.fill_(time.monotonic() - began > BUDGET_S)
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
