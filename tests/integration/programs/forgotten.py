"""Forgets a group, as when it is destroyed, while other threads look at how far it is, for some seconds.

The pulse asks all groups what is complete, at any moment. Prints how often it did so.
"""

import sys
import threading
import time

import torch
import torch.distributed as dist

import ncclwatch
from ncclwatch.rank import attach

SECONDS = 6.0
ASKING = 2


def main() -> None:
    """Do it in a job of one rank."""
    dist.init_process_group("gloo")
    ncclwatch.attach()
    assert type(attach.current()).__name__ == ("NativeRecorder" if sys.argv[1] == "native" else "Recorder")
    assert (attach.current().hot is not None) == (sys.argv[1] == "hot")
    sys.setswitchinterval(1e-5)
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            attach.current().drain_all()

    asking = [threading.Thread(target=ask) for _ in range(ASKING)]
    for thread in asking:
        thread.start()
    until, destroyed = time.monotonic() + SECONDS, 0
    group = dist.new_group([0])
    ones = torch.ones(1)
    while time.monotonic() < until:
        for _ in range(8):
            dist.all_reduce(ones, group=group, async_op=True)
        attach.current().forget_group(group.group_name)  # what destroying it does here, without making another one
        destroyed += 1
    over.set()
    for thread in asking:
        thread.join()
    print(f"forgotten {destroyed}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
