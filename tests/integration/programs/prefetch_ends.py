"""Two ranks train on what a thread of theirs prepares; on rank 1 an exception ends that thread after some batches."""

import queue
import threading

import torch
import torch.distributed as dist

import ncclwatch

BATCHES: "queue.Queue[torch.Tensor]" = queue.Queue(maxsize=2)


def prefetch() -> None:
    number = 0
    while True:
        number += 1
        if number == 30 and dist.get_rank() == 1:
            raise ValueError("bad sample")
        BATCHES.put(torch.ones(8))


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    threading.Thread(target=prefetch, name="prefetch", daemon=True).start()
    while True:
        dist.all_reduce(BATCHES.get())


if __name__ == "__main__":
    main()
