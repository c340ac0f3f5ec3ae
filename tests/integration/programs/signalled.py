"""Gets a signal, whose handler raises, at some moment of each of many operations, most of them the first of a line.

Python's garbage collector runs as often as it can: what is raised in a callback of it is lost.
Prints how many exceptions the handler has raised, and how many of them reached the program.
"""

import gc
import itertools
import os
import random
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import ncclwatch
from ncclwatch.rank import attach

SECONDS = 6.0


class Arrived(Exception):
    """What the program's signal handler raises."""


def be_signalled() -> None:
    """A signal comes while a line issues an operation; for its first the recorder asks Python."""
    raised = reached = 0
    wanted = threading.Event()

    def handle(*_: object) -> None:
        nonlocal raised
        raised += 1
        raise Arrived

    signal.signal(signal.SIGUSR1, handle)
    over = False

    def send() -> None:
        while not over:
            if wanted.wait(0.1):
                wanted.clear()
                time.sleep(random.uniform(0.0, 0.0004))
                os.kill(os.getpid(), signal.SIGUSR1)

    sending = threading.Thread(target=send)
    sending.start()
    until = time.monotonic() + SECONDS
    for number in itertools.count():
        if time.monotonic() > until:
            break
        place = number if number % 3 else 0
        issue = compile("\n" * (place % 5000) + "dist.all_reduce(ones)", f"/lines/{place // 5000}.py", "exec")
        seen = raised
        try:
            wanted.set()
            exec(issue, {"dist": dist, "ones": torch.ones(1)})
            while raised == seen:
                pass
        except Arrived:
            reached += 1
    over = True
    sending.join()
    print(f"raised {raised} reached {reached}", flush=True)


def main() -> None:
    """Do it in a job of one rank."""
    dist.init_process_group("gloo")
    ncclwatch.attach()
    assert (attach.current().hot is not None) == (sys.argv[1] == "hot")
    gc.freeze()  # so that it is done quickly
    gc.set_threshold(1)
    be_signalled()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
