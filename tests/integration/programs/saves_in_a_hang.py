"""Two ranks. One skips an all_reduce and waits for a batch instead; whoever gets `HangError` saves, and ends the job.

Arguments: a directory, then `on_hang` of attach(). Without the exception the job ends by the timeout of its group.
Both ranks have verdicts noted, by a tracker that writes files into the directory.
"""

import os
import queue
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ncclwatch
from ncclwatch.contract.on_hang.notice import HangVerdict
from ncclwatch.integrations.notes import trackers

SKIPPED_AT = 10


class Files:
    name = "files"

    def note(self, verdict: HangVerdict, step: int) -> None:
        Path(sys.argv[1], f"note{os.environ['RANK']}.txt").write_text(verdict.sentence)


def train() -> None:
    batches: queue.Queue[torch.Tensor] = queue.Queue()
    for step in range(1000):
        if dist.get_rank() == 1 and step == SKIPPED_AT:
            batches.get()
        dist.all_reduce(torch.ones(4))


def main() -> None:
    trackers.add(Files())
    ncclwatch.attach(on_hang=sys.argv[2], notes=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=40))
    try:
        train()
    except ncclwatch.HangError as error:
        torch.save({"step": SKIPPED_AT}, Path(sys.argv[1], f"checkpoint{dist.get_rank()}.pt"))
        print(f"saved: {error.cause} by {error.culprits} of {error.job}: {error.sentence}", flush=True)
        sys.exit(3)


main()
