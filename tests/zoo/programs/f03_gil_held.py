"""Train on text that a native tokenizer prepares; the tokenizer is called through ctypes.

torchrun --standalone --nproc-per-node 2 f03_gil_held.py
"""

import ctypes

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

WORDS = 500
RELOAD_AT = 70


class Tokenizer:
    """A native library without any knowledge of Python's interpreter lock."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.native = ctypes.PyDLL(None)
        self.calls = 0

    def encode(self, count: int) -> Tensor:
        self.calls += 1
        if self.rank == 1 and self.calls == RELOAD_AT:
            self.reload_vocabulary()
        return torch.randint(0, WORDS, (count, 12))

    def reload_vocabulary(self) -> None:
        onset.mark()
        self.native.sleep(ctypes.c_uint(600))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    tokenizer = Tokenizer(dist.get_rank())
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(WORDS, 24), nn.Flatten(), nn.Linear(264, WORDS)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(200):
        tokens = tokenizer.encode(16)
        loss = F.cross_entropy(model(tokens[:, :-1]), tokens[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
