"""One process of `mp.spawn` on each node, which tells its rank to init_process_group alone; rank 1 skips a call."""

import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ncclwatch


def train(local: int, node: int, nodes: int, address: str) -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=node + local, world_size=nodes)
    gradients = torch.ones(8)
    for step in range(1000):
        time.sleep(0.05)
        if step == 20 and dist.get_rank() == 1:
            dist.barrier()
        dist.all_reduce(gradients)


if __name__ == "__main__":
    mp.spawn(train, args=(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]), nprocs=1)
