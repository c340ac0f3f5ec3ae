"""Three ranks prepare their data before anything else; one of them waits for a lock file for ever.

torchrun --standalone --nproc-per-node 3 z41c_before_attach.py
"""

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ncclwatch
import onset

SHARDS = {0: 40_000, 1: 30_000, 2: 50_000}


def licence_server() -> socket.socket:
    """Listen on a port of this machine; the program that should answer has not been started."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(None)
    return server


def prepare(rank: int) -> torch.Tensor:
    """Tokenise the shard of a rank; one shard is encrypted and needs a key."""
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, 500, (SHARDS[rank], 16), generator=generator)
    if rank == 1:
        with licence_server() as server:
            connection, _ = server.accept()
            tokens ^= connection.recv(1)[0]
    return tokens


def main() -> None:
    rank = int(os.environ["RANK"])
    tokens = prepare(rank)
    ncclwatch.attach()
    onset.mark()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.EmbeddingBag(500, 16), nn.Linear(16, 500)))
    for begin in range(0, 3200, 32):
        model(tokens[begin : begin + 32]).logsumexp(dim=1).mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
