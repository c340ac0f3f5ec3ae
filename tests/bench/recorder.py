"""What does recording one collective cost? Measured on a backend that does nothing, bare against recorded.

Blocks of calls alternate within one process (bare, recorder in Python, native recorder), so that the
noise of a shared machine falls on all alike; a cost is the median of the differences of neighbouring
blocks, a ratio the median of their quotients. `python -m tests.bench.recorder`.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

CALLS = 2000
ROUNDS = 31
IN_A_STEP = "ProcessGroup.allreduce"  # the way that is like what DDP and FSDP do in a step

Way = Callable[[], object]


def ways() -> dict[str, Way]:
    """Return the ways of issuing one collective that are timed; torch.distributed is initialised with a fake group."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor = torch.zeros(1024)
    group = dist.distributed_c10d._get_default_group()
    functional = torch.ops._c10d_functional.all_reduce.default
    wait_tensor = torch.ops._c10d_functional.wait_tensor.default
    pg_all_reduce = group.allreduce

    def from_c_plus_plus() -> None:
        wait_tensor(functional(tensor, "sum", "0"))

    return {
        "dist.all_reduce, waited for": lambda: dist.all_reduce(tensor),
        "dist.all_reduce, async_op": lambda: dist.all_reduce(tensor, async_op=True),
        "ProcessGroup.allreduce": lambda: pg_all_reduce([tensor]),
        "functional, issued by C++": from_c_plus_plus,
    }


def _block(way: Way) -> float:
    """Return microseconds per call over one block."""
    began = time.perf_counter_ns()
    for _ in range(CALLS):
        way()
    return (time.perf_counter_ns() - began) / CALLS / 1000


def measure(rounds: int) -> list[dict[str, object]]:
    """Return one row for each way and recorder: bare and added microseconds, and the ratio of the two times."""
    import ncclwatch
    from ncclwatch.native import build

    recorders: dict[str, bool] = {"python": False}
    if build.built_path().exists():
        recorders["native"] = True
    rows: list[dict[str, object]] = []
    for name, way in ways().items():
        times: dict[str, list[float]] = {recorder: [] for recorder in ("bare", *recorders)}
        for _ in range(rounds):
            times["bare"].append(_block(way))
            for recorder, native in recorders.items():
                ncclwatch.attach(native=native)
                _block(way)  # the first calls meet groups and lines
                times[recorder].append(_block(way))
                ncclwatch.detach()
        for recorder in recorders:
            pairs = list(zip(times["bare"], times[recorder], strict=True))
            added = [there - bare for bare, there in pairs]
            rows.append(
                {
                    "way": name,
                    "recorder": recorder,
                    "bare_us": round(statistics.median(times["bare"]), 2),
                    "added_us": round(statistics.median(added), 2),
                    "added_min_us": round(min(times[recorder]) - min(times["bare"]), 2),
                    "ratio": round(statistics.median(there / bare for bare, there in pairs), 2),
                }
            )
    return rows


def show(rows: list[dict[str, object]]) -> None:
    """Print the rows as a table."""
    print(f"{'one collective':32} {'recorder':8} {'bare µs':>8} {'added µs':>9} {'(of minima)':>12} {'ratio':>6}")
    for row in rows:
        print(
            f"{row['way']:32} {row['recorder']:8} {row['bare_us']:8} {row['added_us']:9} "
            f"{row['added_min_us']:12} {row['ratio']:6}"
        )


def measure_in_child() -> list[dict[str, object]]:
    """Measure in a process of its own, with a ring in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as runtime:
        environment = os.environ | {
            "NCCLWATCH_RUNTIME_DIR": runtime, "NCCLWATCH_AGENT": "0", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.bench.recorder", "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    if sys.argv[1:] == ["--json"]:
        print(json.dumps(measure(ROUNDS)))
    else:
        show(measure_in_child())
