"""Ends like any program, and prints which threads of ours live when its own last words are spoken."""

import atexit
import threading

import torch
import torch.distributed as dist


def last_words() -> None:
    print([thread.name for thread in threading.enumerate() if "ncclwatch" in thread.name])


atexit.register(last_words)  # before attach(), so it runs after everything that attach() registers
import ncclwatch  # noqa: E402

ncclwatch.attach()
dist.init_process_group("gloo")
print([thread.name for thread in threading.enumerate() if "ncclwatch" in thread.name])
unfinished = dist.irecv(torch.zeros(1), src=1 - dist.get_rank())
if dist.get_rank() == 1:
    dist.send(torch.zeros(1), dst=0)
else:
    dist.send(torch.zeros(1), dst=1)
unfinished.wait()
