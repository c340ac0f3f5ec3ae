"""Train on a mesh of three rows and two columns; gradients are reduced in columns, activations gathered in rows.

torchrun --standalone --nproc-per-node 6 f14_hot_expert.py
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import ncclwatch
import onset

STEPS = 250
HOT, HOT_S, LIKE_S = 3, 0.25, 0.03


def main() -> None:
    ncclwatch.attach()
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh.get_group("data"), mesh.get_group("tensor")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layer = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    onset.mark()
    for step in range(STEPS):
        hidden = layer(torch.randn(16, 32))
        time.sleep(HOT_S if rank == HOT else LIKE_S)  # the experts of this rank
        whole = [torch.empty_like(hidden) for _ in range(2)]
        dist.all_gather(whole, hidden.detach(), group=tensor)
        loss = (hidden - whole[1 - rank % 2]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad, group=data)
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
