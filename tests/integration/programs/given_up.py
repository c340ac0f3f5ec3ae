"""Rank 0 gives up a monitored_barrier to which rank 1 comes too late; says what its ring holds of the group then."""

import json
from datetime import timedelta

import torch.distributed as dist

import ncclwatch
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank import attach


def progress() -> list[int]:
    """Return how many operations of the only group this rank has issued, and how many are over."""
    recorder = attach.current()
    assert recorder is not None
    ring = Ring(recorder.ring.path)
    try:
        (group,) = ring.groups()
        return [group.enqueued, group.completed]
    finally:
        ring.close()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if dist.get_rank() == 1:
        store.wait(["given up"])
        return
    error = ""
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=0.2))
    except RuntimeError as caught:
        error = str(caught).splitlines()[0]
    print(json.dumps([error, progress()]))
    store.set("given up", "1")


main()
