"""Measures what recording costs a training step: a real DDP and a real FSDP2 job of two ranks over gloo.

In one job, blocks of steps alternate: bare, recorded in Python, recorded natively, in turning order; the ranks
stay in step by their own collectives. A ratio is that of neighbouring blocks; its confidence interval (95 %, by
Student's t on the logarithms) tells what the noise of the machine leaves open. The agent is not part of
it: it is another process, measured in agent.py.

The same jobs run under TORCH_DISTRIBUTED_DEBUG=DETAIL and without torch's flight recorder, in turns.

    python -m tests.bench.steps                      # starts the jobs
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import recorder
from tests.bench.row import Row, at_most, show

PAIRS = 33
STEPS = 12  # in a block
STEP_RATIO_MAX = 1.001
VARIANTS = {
    "default": {},
    "DETAIL": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    "no flight recorder": {"TORCH_FR_BUFFER_SIZE": "0"},
}
_T_95 = {32: 2.037, 8: 2.306}  # Student's t for this many degrees of freedom


def make_step(kind: str) -> Callable[[], object]:
    """Return one training step of a small model in DDP or FSDP2."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(384, 1536), nn.GELU(), nn.Linear(1536, 384)) for _ in range(4)]
    model: nn.Module = nn.Sequential(*layers)
    if kind == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=2)
    else:
        for layer in layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.ones(32, 384)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def run_rank(kind: str, pairs: int) -> dict[str, object]:
    """Return the milliseconds per step of each block, by recorder."""
    import torch.distributed as dist

    import ncclwatch
    from ncclwatch.contract.ring.layout import Word
    from ncclwatch.native import build
    from ncclwatch.rank import attach

    dist.init_process_group("gloo")
    recorders = ["bare", "python", *(["native"] if build.built_path().exists() else [])]
    step = make_step(kind)
    for _ in range(STEPS):
        step()
    times: dict[str, list[float]] = {name: [] for name in recorders}
    issued = 0
    for turn in range(pairs):
        for name in recorders[turn % len(recorders) :] + recorders[: turn % len(recorders)]:
            if name != "bare":
                ncclwatch.attach(native=name == "native")
            step()  # the first meets groups and lines
            recorder = attach.current()
            before = recorder.ring.word(Word.EVENTS_HEAD) if recorder else 0
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            times[name].append((time.perf_counter() - began) / STEPS * 1000)
            if recorder is not None:
                issued = recorder.ring.word(Word.EVENTS_HEAD) - before
            ncclwatch.detach()
    dist.barrier()
    dist.destroy_process_group()
    return {"times": times, "collectives_per_step": issued / STEPS}


def ratio(bare: list[float], there: list[float]) -> tuple[float, float, float]:
    """Return (ratio, lower, upper) of two paired series, with a 95 % confidence interval."""
    logs = [math.log(b / a) for a, b in zip(bare, there, strict=True)]
    mean, spread = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = _T_95.get(len(logs) - 1, 2.05) * spread
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def run_job(kind: str, pairs: int, variant: str, port: int) -> dict[str, object]:
    """Run one job of two ranks and return what rank 0 measured."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as runtime:
        common = os.environ | VARIANTS[variant] | {
            "NCCLWATCH_RUNTIME_DIR": runtime, "NCCLWATCH_AGENT": "0", "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": "2",
        }  # fmt: skip
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench.steps", "--rank", kind, str(pairs)],
                env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=Path(__file__).parents[2],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(rank.returncode for rank in ranks):
        # torch 2.13 itself ends with SIGSEGV where DDP meets DETAIL, with nothing attached to it.
        return {"ended_with": sorted({rank.returncode for rank in ranks})}
    return dict(json.loads(outputs[0].splitlines()[-1]))


def measure(costs_us: dict[str, float], pairs: int = PAIRS) -> list[dict[str, Any]]:
    """Return one row for each job and recorder; `costs_us` is what recording one collective costs."""
    from tests.integration.launch import free_port

    found_rows: list[dict[str, Any]] = []
    for kind in ("ddp", "fsdp2"):
        bare_ms = 0.0
        for variant in VARIANTS:
            found = run_job(kind, pairs if variant == "default" else 9, variant, free_port())
            if "ended_with" in found:
                found_rows.append(
                    {"job": kind, "variant": variant, "recorder": "bare", "ended_with": found["ended_with"]}
                )
                continue
            times: dict[str, list[float]] = found["times"]  # type: ignore[assignment]
            per_step: float = found["collectives_per_step"]  # type: ignore[assignment]
            bare_ms = bare_ms or statistics.median(times["bare"])
            median = statistics.median(times["bare"])
            found_rows.append({"job": kind, "variant": variant, "recorder": "bare", "step_ms": round(median, 2),
                         "against_default": round(median / bare_ms, 3)})  # fmt: skip
            for name in [name for name in times if name != "bare"]:
                middle, low, high = ratio(times["bare"], times[name])
                row = {"job": kind, "variant": variant, "recorder": name, "pairs": len(times[name]),
                       "ratio": round(middle, 4), "low": round(low, 4), "high": round(high, 4),
                       "collectives_per_step": per_step}  # fmt: skip
                if name in costs_us:
                    row["computed_percent"] = round(per_step * costs_us[name] / (median * 1000) * 100, 4)
                found_rows.append(row)
    return found_rows


def rows() -> list[Row]:
    """Measure the jobs, and one collective for what its count alone explains. Only what noise cannot hide is missed."""
    per_step = {
        row["recorder"]: row["added_us"] for row in recorder.measure_in_child() if row["way"] == recorder.IN_A_STEP
    }
    found = []
    for row in measure(per_step):
        name = f"step of {row['job']}, {row['variant']}"
        if "ended_with" in row:
            found.append(Row(what=f"{name}: ended by torch with {row['ended_with']}", unit="ms", ours=float("nan")))
        elif row["recorder"] == "bare":
            found.append(Row(what=f"{name}, bare", unit="ms", ours=row["step_ms"]))
        else:
            what = f"{name}, {row['recorder']} recorder ({row['low']} to {row['high']})"
            met = False if row["low"] > STEP_RATIO_MAX else True if row["high"] <= STEP_RATIO_MAX else None
            found.append(
                Row(what=what, unit="x", ours=row["ratio"], peer="bare", theirs=1.0, budget="< 1.001", met=met)
            )
            if "computed_percent" in row:
                budget, met = at_most(0.1, row["computed_percent"], "%")
                what = f"{name}, {row['recorder']} recorder, operations x cost of one"
                found.append(Row(what=what, unit="%", ours=row["computed_percent"], budget=budget, met=met))
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        print(json.dumps(run_rank(sys.argv[2], int(sys.argv[3]))))
    else:
        show(rows())
