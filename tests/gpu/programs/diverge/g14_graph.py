"""Steps are replayed as a CUDA graph with an all_reduce inside; one rank replays one step fewer."""

import onset
import torch
import torch.distributed as dist
from device import begin

import ncclwatch


def main() -> None:
    ncclwatch.attach()
    rank, device = begin()
    x = torch.ones(4096, device=device)
    for _ in range(3):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.fill_(1)
        dist.all_reduce(x)
        x.mul_(2)
    steps = 39 if rank == 1 else 40
    for step in range(steps):
        if step == 39:
            onset.mark()
        graph.replay()
        print(step, x[0].item(), flush=True)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
