"""Groups with timeouts of their own, one of which changes later; says what the ring holds of them."""

import json
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import ncclwatch
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank import attach


def limits() -> list[int]:
    """Return the timeouts of all groups in the ring, in ms."""
    recorder = attach.current()
    assert recorder is not None
    ring = Ring(recorder.ring.path)
    try:
        return [group.timeout_ms for group in ring.groups()]
    finally:
        ring.close()


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    side = dist.new_group(timeout=timedelta(seconds=7))
    for group in (None, side):
        dist.all_reduce(torch.ones(1), group=group)
    before = limits()
    distributed_c10d._set_pg_timeout(timedelta(seconds=90), side)
    print(json.dumps([before, limits()]))
    dist.destroy_process_group()


main()
