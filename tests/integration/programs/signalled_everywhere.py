"""Gets a signal, whose handler raises, at each line of the recorder in turn while the first operations of a group run.

Prints at how many places it came, how many exceptions the handler raised, and how many of them reached the program.
"""

import itertools
import signal
import sys
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

import ncclwatch
from ncclwatch.rank import attach

OURS = str(Path(ncclwatch.__file__).parent)
OPERATIONS = """
dist.all_reduce(ones, group=group)
dist.all_reduce(ones, group=group, async_op=True).wait()
dist.barrier(group=group)
"""


class Arrived(Exception):
    """What the program's signal handler raises."""


class Once:
    """A trace function that sends a signal at the first place of the recorder where none has come yet."""

    def __init__(self) -> None:
        self.where: tuple[str, int, str] | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> "Once | None":
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        where = frame.f_code.co_filename, frame.f_lineno, event
        if where not in tried:
            sys.settrace(None)
            tried.add(where)
            self.where = where
            signal.raise_signal(signal.SIGUSR1)
        return self


def first_operations(number: int) -> bool:
    """Issue what a group sees first, at lines that nobody knows yet. Returns whether a signal came."""
    group = dist.new_group([0])
    issue = compile("\n" * number + OPERATIONS, "/lines.py", "exec")
    once = Once()
    signal.signal(signal.SIGUSR1, handle)
    try:
        sys.settrace(once)
        exec(issue, {"dist": dist, "ones": torch.ones(1), "group": group})
        for _ in range(10):  # a pending call is made between two instructions
            pass
    except Arrived:
        tally["reached"] += 1
    else:
        if once.where:
            print("lost at", *once.where, file=sys.stderr)
    finally:
        sys.settrace(None)
    dist.destroy_process_group(group)
    return once.where is not None


def handle(*_: object) -> None:
    """Raise, as a user's time limit does."""
    tally["raised"] += 1
    raise Arrived


tried: set[tuple[str, int, str]] = set()
tally = {"raised": 0, "reached": 0}


def main() -> None:
    """Do it in a job of one rank, until there is no further line."""
    dist.init_process_group("gloo")
    ncclwatch.attach()
    assert (attach.current().hot is not None) == (sys.argv[1] == "hot")
    for number in itertools.count(1):
        if not first_operations(number):
            break
    print(len(tried), *tally.values(), flush=True)
    dist.destroy_process_group()


main()
