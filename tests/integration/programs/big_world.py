"""A rank of a big job whose peers do not exist: torch's own groups, recorded and read back from its ring."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import ncclwatch
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.rank import attach

WORLD = int(sys.argv[1])


def main() -> None:
    """Make groups of torch, use each once, and compare what the ring says of them with what torch says."""
    ncclwatch.attach()
    dist.init_process_group(backend="fake", rank=0, world_size=WORLD, store=FakeStore())
    groups = [dist.group.WORLD, dist.new_group(list(range(0, WORLD, 8))), dist.new_group(list(range(WORLD // 2)))]
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    recorder = attach.current()
    began = time.thread_time()
    recorder.ring.add_group("again", "", list(range(1, WORLD)), 0)
    took_ms = (time.thread_time() - began) * 1e3
    with Ring(recorder.ring.path) as ring:
        found = {group.name: group.ranks for group in ring.groups()}
        for group in groups:
            assert found[group.group_name] == tuple(dist.get_process_group_ranks(group)), group.group_name
    assert recorder.ring.word(11) == 0, "something was dropped"
    print(f"ok {took_ms:.1f}", flush=True)
    ncclwatch.detach()
    os._exit(0)


if __name__ == "__main__":
    main()
