"""A job that knows nothing of ncclwatch: loader processes of both kinds, a helper process, the end.

`hang`: rank 1 leaves the loop three steps early and waits in a barrier. `attach`: rank 1 is edited after all.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

HELPER = "import sys; print(*sorted(n for n in sys.modules if n.startswith('ncclwatch')))"


class Ones(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(8) * len([name for name in sys.modules if name == "ncclwatch"])


def main() -> None:
    if "attach" in sys.argv and os.environ["RANK"] == "1":
        import ncclwatch

        ncclwatch.attach()
    init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    spawned = DataLoader(Ones(), batch_size=12, num_workers=1, multiprocessing_context="spawn")
    in_spawned = max(batch.max().item() for batch in spawned) if "hang" not in sys.argv else 0.0
    for number, batch in enumerate(DataLoader(Ones(), batch_size=2, num_workers=1)):
        if "hang" in sys.argv and rank == 1 and number == 9:
            break
        model(batch).sum().backward()
    dist.barrier()
    helper = subprocess.run([sys.executable, "-c", HELPER], capture_output=True, text=True, check=True)
    rings = sorted(path.stem for path in Path(os.environ["NCCLWATCH_RUNTIME_DIR"]).glob("*/*/*.ring"))
    seen = {"rings": rings, "pid": os.getpid(), "helper": helper.stdout.strip(), "spawned": in_spawned}
    told = json.dumps(seen | {"mine": os.environ.get("MY_SITE", ""), "init": dist.init_process_group.__module__})
    os.write(1, f"{told}\n".encode())  # in one piece: torchrun runs ranks with -u, and print writes twice then
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
