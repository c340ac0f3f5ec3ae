"""Measures what recording one collective costs, on a backend that does nothing, bare against recorded.

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
from typing import Any

from tests.bench.row import Row, at_most, show

CALLS = 2000
ROUNDS = 31
IN_A_STEP = "ProcessGroup.allreduce"  # the way that is like what DDP and FSDP do in a step
FROM_C_PLUS_PLUS = "functional, issued by C++"
NATIVE_US_MAX, PYTHON_US_MAX, C_PLUS_PLUS_US_MAX = 0.5, 1.0, 7.0

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
        FROM_C_PLUS_PLUS: from_c_plus_plus,
    }


def _block(way: Way) -> float:
    """Return microseconds per call over one block."""
    began = time.perf_counter_ns()
    for _ in range(CALLS):
        way()
    return (time.perf_counter_ns() - began) / CALLS / 1000


def measure(rounds: int) -> list[dict[str, Any]]:
    """Return one row for each way and recorder: bare and added microseconds, and the ratio of the two times."""
    import ncclwatch
    from ncclwatch.native import build

    recorders: dict[str, bool] = {"python": False}
    if build.built_path().exists():
        recorders["native"] = True
    rows: list[dict[str, Any]] = []
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


def rows() -> list[Row]:
    """Measure in a process of its own. A cost is minimum against minimum, which noise touches least."""
    found = []
    for row in measure_in_child():
        native, way = row["recorder"] == "native", str(row["way"])
        bound = NATIVE_US_MAX if native else C_PLUS_PLUS_US_MAX if way == FROM_C_PLUS_PLUS else PYTHON_US_MAX
        added = float(row["added_min_us"])
        budget, met = at_most(bound, added, "µs")
        what = f"recording {way}, {row['recorder']} recorder"
        bare = float(row["bare_us"])
        found.append(Row(what=what, unit="µs", ours=added, peer="the bare call", theirs=bare, budget=budget, met=met))
    return found


def measure_in_child() -> list[dict[str, Any]]:
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
        show(rows())
