"""Train and upload a checkpoint from the first rank to a store that takes it slowly.

torchrun --standalone --nproc-per-node 2 c10_slow_upload.py
"""

import subprocess
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch

# Stands for the client of the store: it accepts a block and is silent until that is confirmed.
CLIENT = "import sys, time\nwhile sys.stdin.buffer.read(1 << 19): time.sleep(2.5)"


class Uploads:
    """A file to which torch.save can write."""

    def __init__(self) -> None:
        self.client = subprocess.Popen([sys.executable, "-c", CLIENT], stdin=subprocess.PIPE)

    def write(self, block: bytes) -> int:
        return self.client.stdin.write(block)

    def flush(self) -> None:
        self.client.stdin.flush()

    def close(self) -> None:
        self.client.stdin.close()
        self.client.wait()


def save(model: nn.Module) -> None:
    if dist.get_rank() == 0:
        upload = Uploads()
        torch.save(model.state_dict(), upload)
        upload.close()
    dist.barrier()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(200, 1500), nn.ReLU(), nn.Linear(1500, 300)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 81):
        inputs = torch.randn(16, 200)
        loss = F.mse_loss(model(inputs)[:, :200], inputs.cos())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 40:
            save(model.module)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.3f}, saved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
