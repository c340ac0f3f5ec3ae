"""Four ranks in two pairs: each makes a group of its own, both under one name, and what they do in it differs.

As where torch names such groups by their number, here with a store for each side, since a store is asked by the name.
Once the file STOP_FILE is there, one rank of the second pair comes to no operation any more.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import ncclwatch


def own_group(side: int) -> "dist.ProcessGroup | None":
    """Make the group of this side."""
    backend, store = c10d._world.pg_map[dist.group.WORLD]
    c10d._world.pg_map[dist.group.WORLD] = backend, dist.PrefixStore(f"side {side}", store)
    c10d._hash_ranks_to_str = lambda ranks: str(len(c10d._world.pg_names))
    return dist.new_group([2 * side, 2 * side + 1], use_local_synchronization=True)


def main() -> None:
    ncclwatch.attach()
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4))
    side, stop = dist.get_rank() // 2, Path(os.environ["STOP_FILE"])
    group = own_group(side)
    os.write(1, f"group {group.group_name}\n".encode())  # in one piece: the ranks share a pipe
    while True:
        for _ in range(1 + 2 * side):
            dist.all_reduce(torch.ones(4 + side), group=group)
        time.sleep(0.05)
        if dist.get_rank() == 3 and stop.exists():
            time.sleep(600)


if __name__ == "__main__":
    main()
