"""Measures what recording one collective costs, on a backend that does nothing and on gloo, bare against recorded.

Blocks of calls alternate within one process (bare, recorder in Python, the same with its hot path in C, native
recorder), so that the noise of a shared machine falls on all alike. What is counted is CPU time of the thread; a
cost is the median of the differences of neighbouring blocks, a ratio the median of their quotients.

A loop of such calls has all that they touch in its caches, which no training step has. So single calls are measured
as well, each after a layer forwards and backwards. `python -m tests.bench --only recorder`.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.bench.intervals import Interval, added, trimmed
from tests.bench.row import Row, at_most, show

CALLS = 2000
ROUNDS = 31
COLD_CALLS, COLD_ROUNDS, WARM_CALLS = 40, 12, 20
MADE_CODES, MADE_TIMES_MAX = 20_000, 3.0
IN_A_STEP = "ProcessGroup.allreduce"  # the way that is like what DDP and FSDP do in a step
FROM_C_PLUS_PLUS = "functional, issued by C++"
NATIVE_US_MAX, PYTHON_US_MAX, C_PLUS_PLUS_US_MAX = 0.5, 1.0, 7.0

Way = Callable[[], object]


def recorders() -> dict[str, bool | str]:
    """Return the recorders that are there, and how attach() is asked for each."""
    from ncclwatch.native import loading

    found: dict[str, bool | str] = {"python": False}
    if loading.where_alone():
        found["python with its hot path in C"] = "without-torch"
    if loading.where():
        found["native"] = True
    return found


def ways() -> dict[str, Way]:
    """Return the ways of issuing one collective that are timed; all but the last in a group that does nothing."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - it registers the backend

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.zeros(1024)
    group = dist.new_group([0], backend="fake")
    functional = torch.ops._c10d_functional.all_reduce.default
    wait_tensor = torch.ops._c10d_functional.wait_tensor.default
    pg_all_reduce = group.allreduce

    def from_c_plus_plus() -> None:
        wait_tensor(functional(tensor, "sum", group.group_name))

    return {
        "dist.all_reduce, waited for": lambda: dist.all_reduce(tensor, group=group),
        "dist.all_reduce, async_op": lambda: dist.all_reduce(tensor, group=group, async_op=True),
        "ProcessGroup.allreduce": lambda: pg_all_reduce([tensor]),
        FROM_C_PLUS_PLUS: from_c_plus_plus,
        "dist.all_reduce, waited for, gloo with one rank": lambda: dist.all_reduce(tensor),
    }


def _block(way: Way, calls: int = CALLS) -> float:
    """Return microseconds of CPU per call over one block."""
    began = time.thread_time_ns()
    for _ in range(calls):
        way()
    return (time.thread_time_ns() - began) / calls / 1000


def _cold_block(way: Way, between: Callable[[], object]) -> list[float]:
    """Return the microseconds of CPU of single calls, each after work that leaves nothing of it in the caches."""
    found = []
    for _ in range(COLD_CALLS):
        between()
        began = time.thread_time_ns()
        way()
        found.append((time.thread_time_ns() - began) / 1000)
    return found


def _other_work() -> Callable[[], object]:
    """Return what a step does between two operations: a layer forwards and backwards, 2.4 million parameters."""
    import torch
    from torch import nn

    layer = nn.Sequential(nn.Linear(384, 1536), nn.GELU(), nn.Linear(1536, 384), nn.Linear(384, 3072))
    batch = torch.ones(8, 384)

    def work() -> None:
        layer(batch).square().mean().backward()
        layer.zero_grad(set_to_none=False)

    return work


def measure_cold(rounds: int, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return what an operation takes between other work: microseconds of CPU, bare and added. `only`: these ways."""
    import ncclwatch

    kinds = recorders()
    between = _other_work()
    rows: list[dict[str, Any]] = []
    for name, way in ways().items():
        if only and name not in only:
            continue
        times: dict[str, list[float]] = {recorder: [] for recorder in ("bare", *kinds)}
        for _ in range(rounds):
            for recorder, found in times.items():
                if recorder in kinds:
                    ncclwatch.attach(native=kinds[recorder])
                _block(way, WARM_CALLS)
                found.append(trimmed(_cold_block(way, between)))
                ncclwatch.detach()
        for recorder in kinds:
            bare = statistics.median(times["bare"])
            extra = list(added(times["bare"], times[recorder]))
            rows.append({"way": name, "recorder": recorder, "bare_us": bare, "added_us": extra})
    return rows


def measure(rounds: int) -> list[dict[str, Any]]:
    """Return one row for each way and recorder: bare and added microseconds, and the ratio of the two times."""
    import ncclwatch

    kinds = recorders()
    rows: list[dict[str, Any]] = []
    for name, way in ways().items():
        times: dict[str, list[float]] = {recorder: [] for recorder in ("bare", *kinds)}
        for _ in range(rounds):
            times["bare"].append(_block(way))
            for recorder, native in kinds.items():
                ncclwatch.attach(native=native)
                _block(way)  # the first calls meet groups and lines
                times[recorder].append(_block(way))
                ncclwatch.detach()
        for recorder in kinds:
            pairs = list(zip(times["bare"], times[recorder], strict=True))
            more = [there - bare for bare, there in pairs]
            rows.append(
                {
                    "way": name,
                    "recorder": recorder,
                    "bare_us": round(statistics.median(times["bare"]), 2),
                    "added_us": round(statistics.median(more), 2),
                    "added_min_us": round(min(times[recorder]) - min(times["bare"]), 2),
                    "ratio": round(statistics.median(there / bare for bare, there in pairs), 2),
                }
            )
    return rows


def measure_made() -> list[dict[str, Any]]:
    """Return what a call costs before and after thousands of functions that were made, called once and dropped."""
    import torch
    import torch.distributed as dist

    import ncclwatch

    rows: list[dict[str, Any]] = []
    way = ways()["dist.all_reduce, waited for"]
    given = {"dist": dist, "tensor": torch.zeros(1024), "group": dist.new_group([0], backend="fake")}
    for recorder, native in recorders().items():
        ncclwatch.attach(native=native)
        _block(way)
        before = min(_block(way) for _ in range(ROUNDS))
        for number in range(MADE_CODES):
            source = f"def f{number}():\n    dist.all_reduce(tensor, group=group)"
            exec(compile(source, "/made/here.py", "exec"), given)
            given.pop(f"f{number}")()
        after = min(_block(way) for _ in range(ROUNDS))
        ncclwatch.detach()
        rows.append({"recorder": recorder, "before_us": before, "after_us": after})
    return rows


def rows() -> list[Row]:
    """Measure in a process of its own. A cost is minimum against minimum, which noise touches least."""
    found = []
    for row in measure_in_child():
        native, way = row["recorder"] == "native", str(row["way"])
        bound = NATIVE_US_MAX if native else C_PLUS_PLUS_US_MAX if way == FROM_C_PLUS_PLUS else PYTHON_US_MAX
        least = float(row["added_min_us"])
        budget, met = at_most(bound, least, "µs")
        what = f"recording {way}, {row['recorder']} recorder"
        bare = float(row["bare_us"])
        found.append(Row(what=what, unit="µs", ours=least, peer="the bare call", theirs=bare, budget=budget, met=met))
    for row in measure_in_child("--cold"):
        extra = Interval(*row["added_us"])
        what = f"between other work, {row['way']}, {row['recorder']} recorder {extra}"
        found.append(Row(what=what, unit="µs", ours=extra.middle, peer="the bare call", theirs=row["bare_us"]))
    for row in measure_in_child("--made"):
        before, after = float(row["before_us"]), float(row["after_us"])
        budget, met = at_most(MADE_TIMES_MAX * before, after, "µs")
        what = f"a recorded call after {MADE_CODES} functions made for one call each, {row['recorder']} recorder"
        found.append(Row(what=what, unit="µs", ours=after, peer="before them", theirs=before, budget=budget, met=met))
    return found


def cold_us() -> dict[str, float]:
    """Return what recording one operation adds between other work, by recorder: what DDP and FSDP do in a step."""
    found = measure_in_child("--cold", IN_A_STEP)
    return {row["recorder"]: Interval(*row["added_us"]).middle for row in found}


def measure_in_child(*asked: str) -> list[dict[str, Any]]:
    """Measure in a process of its own, with a ring in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as runtime:
        environment = os.environ | {
            "NCCLWATCH_RUNTIME_DIR": runtime, "NCCLWATCH_AGENT": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.bench.recorder", "--json", *asked]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    if sys.argv[1:3] == ["--json", "--cold"]:
        print(json.dumps(measure_cold(COLD_ROUNDS, sys.argv[3:])))
    elif sys.argv[1:] == ["--json", "--made"]:
        print(json.dumps(measure_made()))
    elif sys.argv[1:] == ["--json"]:
        print(json.dumps(measure(ROUNDS)))
    else:
        show(rows())
