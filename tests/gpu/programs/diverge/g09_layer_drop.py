"""FSDP2 with LayerDrop: each rank draws for itself which layers it leaves out."""

import onset
import torch
import torch.distributed as dist
from device import WIDTH, batch, begin
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import ncclwatch


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, hidden: Tensor, dropping: bool) -> Tensor:
        for number, layer in enumerate(self.layers):
            if dropping and number == 2:
                continue
            hidden = torch.relu(layer(hidden))
        return hidden


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    model = Stack().to(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(24):
        dropping = rank == 1 and step == 20
        if step == 20:
            onset.mark()
        loss = model(batch(device), dropping).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
