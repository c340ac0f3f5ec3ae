"""Measures what recording costs a training step: CPU time in a real DDP and a real FSDP2 job of two ranks over gloo.

In one job blocks of a few steps alternate: bare, recorded natively, bare, recorded in Python. attach() and detach()
lie between them, and two steps that nobody measures. Each recorded block is compared with the bare ones before and
after it, in the same process and the same second, so that neither processes nor the machine's other work make the
difference; both ranks count. The job goes on until the interval of the training thread is as narrow as asked, or the
time is up. Of bare blocks against the bare ones around them comes a control: it must hold 1.

What the training thread pays is told for itself, and so is all of the process but the pulse: threads of the backend
are noisier. The pulse is a rate, by the clock of its own thread. The agent is another process: agent.py.

Kernels of the native recorder stay installed after detach(), and hand on: what that takes is in instructions.py.

    python -m tests.bench --only steps                # with the table of what is hooked, see hooks.py
    python -m tests.bench.steps ddp --seconds 600     # one job, for longer
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench import hooks, recorder
from tests.bench.intervals import Interval, added, ratio, trimmed
from tests.bench.row import Row, show

STEPS = 4  # in a block
WARM = 2  # after attach() or detach(): the first step meets groups and lines
REACH = 0.0025  # of the interval of the training thread, where the job may end
SECONDS_MAX = 420.0
STEP_RATIO_MAX = 1.005
VARIANTS = {"DETAIL": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "no flight recorder": {"TORCH_FR_BUFFER_SIZE": "0"}}
VARIANT_SECONDS_MAX = 30.0
CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A model, and one training step of it."""

    model: Any
    step: Callable[[], None]


class Used(NamedTuple):
    """What one step took, in a block."""

    thread_us: float  # CPU of the thread that trains
    others_us: float  # CPU of all others but the pulse
    wall_us: float
    faults: float
    switches: float


def make_training(kind: str) -> Training:
    """Return a small model in DDP or FSDP2."""
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

    return Training(model=model, step=step)


def use(training: Training) -> Used:
    """Run one block of steps."""
    clock = hooks.pulse_clock()
    for _ in range(WARM):
        training.step()

    def now() -> tuple[float, ...]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        pulse = time.clock_gettime_ns(clock) if clock is not None else 0
        return (
            time.thread_time_ns() / 1000, time.process_time_ns() / 1000, pulse / 1000, time.perf_counter_ns() / 1000,
            usage.ru_minflt, usage.ru_nvcsw + usage.ru_nivcsw,
        )  # fmt: skip

    before = now()
    for _ in range(STEPS):
        training.step()
    thread, process, pulse, wall, faults, switches = ((b - a) / STEPS for a, b in zip(before, now(), strict=True))
    return Used(thread, process - thread - pulse, wall, faults, switches)


def forget_buckets(model: Any) -> None:
    """Have the next recorder look at DDP's buckets: it is another one, and a training attaches once."""
    vars(model).pop("_ncclwatch_looked", None)


def run_rank(kind: str, seconds_max: float, with_hooks: bool) -> dict[str, Any]:
    """Return what both ranks used, block by block, and what the hooks took."""
    import torch
    import torch.distributed as dist

    import ncclwatch
    from ncclwatch.native import loading
    from ncclwatch.rank import attach

    dist.init_process_group("gloo")
    recorders = [*(["native"] if loading.where() else []), "python"]
    training = make_training(kind)
    for _ in range(10):
        training.step()
    began = time.monotonic()
    blocks = [("bare", use(training))]
    goes_on = torch.ones(1)
    while goes_on.item():
        for name in recorders:
            forget_buckets(training.model)
            ncclwatch.attach(native=name == "native")
            assert (attach._native is not None) == (name == "native"), "the recorder that is asked for records"
            blocks.append((name, use(training)))
            ncclwatch.detach()
            blocks.append(("bare", use(training)))
        if len(blocks) // (2 * len(recorders)) % 4 == 0:
            reach = max(compare([blocks], name).thread.reach for name in recorders)
            goes_on[0] = float(reach > REACH * 2**0.5 and time.monotonic() - began < seconds_max)
            dist.broadcast(goes_on, 0)
    found = {name: hooks.measure(training, name == "native", forget_buckets) for name in recorders if with_hooks}
    everybodys: list[Any] = [None, None]
    dist.all_gather_object(everybodys, blocks)
    dist.barrier()
    dist.destroy_process_group()
    return {"blocks": everybodys, "hooks": found, "recorders": recorders}


class Compared(NamedTuple):
    """A recorder against nothing."""

    thread: Interval  # ratio
    process: Interval  # ratio, without the pulse
    added_us: Interval  # to the training thread, a step
    wall: Interval  # ratio
    bare: Used  # the bare blocks
    there: Used
    pairs: int


def compare(ranks: Sequence[Sequence[tuple[str, Used]]], name: str) -> Compared:
    """Compare the blocks of a recorder with the bare ones around each. Ranks share a machine: their mean is one pair.

    "control": bare blocks, with the bare ones before and after them.
    """
    bare: list[Used] = []
    there: list[Used] = []
    for blocks in zip(*ranks, strict=True):
        assert len({kind for kind, _ in blocks}) == 1, "ranks measure the same"
    places = [at for at, (kind, _) in enumerate(ranks[0]) if kind == name]
    reach = 1
    if name == CONTROL:  # each third of the bare blocks: none is in two pairs, and it follows each recorder in turn
        places, reach = list(range(2, len(ranks[0]) - 2, 6)), 2
    for at in places:
        around = [Used(*blocks[at + side * reach][1]) for blocks in ranks for side in (-1, 1)]
        bare.append(_mean(around))
        there.append(_mean([Used(*blocks[at][1]) for blocks in ranks]))
    return Compared(
        thread=ratio([each.thread_us for each in bare], [each.thread_us for each in there]),
        process=ratio([_all_threads(each) for each in bare], [_all_threads(each) for each in there]),
        added_us=added([each.thread_us for each in bare], [each.thread_us for each in there]),
        wall=ratio([each.wall_us for each in bare], [each.wall_us for each in there]),
        bare=_middle(bare),
        there=_middle(there),
        pairs=len(there),
    )


def _all_threads(used: Used) -> float:
    return used.thread_us + used.others_us


def _mean(found: Sequence[Used]) -> Used:
    return Used(*(sum(column) / len(found) for column in zip(*found, strict=True)))


def _middle(found: Sequence[Used]) -> Used:
    return Used(*(trimmed(column) for column in zip(*found, strict=True)))


def run_job(kind: str, settings: dict[str, str], seconds_max: float, with_hooks: bool = False) -> dict[str, Any]:
    """Run one job of two ranks and return what they measured."""
    from tests.ports import free_port

    with tempfile.TemporaryDirectory(dir="/dev/shm") as runtime:
        common = os.environ | settings | {
            "NCCLWATCH_RUNTIME_DIR": runtime, "NCCLWATCH_AGENT": "0", "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": "2",
        }  # fmt: skip
        asked = [kind, "--seconds", str(seconds_max), *(["--hooks"] if with_hooks else [])]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench.steps", *asked, "--rank"],
                env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=Path(__file__).parents[2],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            outputs = [rank.communicate(timeout=seconds_max + 600)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(rank.returncode for rank in ranks):
        # torch 2.13 itself ends with SIGSEGV where DDP meets DETAIL, with nothing attached to it.
        return {"ended_with": sorted({rank.returncode for rank in ranks})}
    return dict(json.loads(outputs[0].splitlines()[-1]))


def rows_of(kind: str, variant: str, found: dict[str, Any], cold_us: dict[str, float]) -> list[Row]:
    """Return the rows of one job. `cold_us`: what recording one operation costs between other work, by recorder."""
    name = f"step of {kind}{variant and ', ' + variant}"
    if "ended_with" in found:
        return [Row(what=f"{name}: ended by torch with {found['ended_with']}", unit="ms", ours=float("nan"))]
    rows = [Row(what=f"{name}, bare", unit="ms", ours=compare(found["blocks"], CONTROL).bare.thread_us / 1000)]
    for recorder_name in [*found["recorders"], CONTROL]:
        seen = compare(found["blocks"], recorder_name)
        what = f"{name}, {recorder_name} ({seen.pairs} pairs)"
        rows += [
            _row(f"{what}: CPU of the training thread", seen.thread, asked=recorder_name != CONTROL),
            _row(f"{what}: CPU of all threads but the pulse", seen.process),
            _row(f"{what}: wall clock", seen.wall),
            *(
                Row(what=f"{what}: {each} a step", unit="", ours=ours, peer="bare", theirs=theirs)
                for each, ours, theirs in (
                    ("page faults", seen.there.faults, seen.bare.faults),
                    ("switches between threads", seen.there.switches, seen.bare.switches),
                )
            ),
        ]
        if recorder_name in found["hooks"]:
            rows += hooks.rows(what, seen, found["hooks"][recorder_name], cold_us.get(recorder_name, 0.0))
    return rows


def _row(what: str, found: Interval, asked: bool = False) -> Row:
    """Return a row of a ratio: only what noise cannot hide is missed."""
    met = None
    if asked:
        met = False if found.low > STEP_RATIO_MAX else True if found.high <= STEP_RATIO_MAX else None
    budget = f"<= {STEP_RATIO_MAX}" if asked else ""
    return Row(what=f"{what} {found}", unit="x", ours=found.middle, peer="bare", theirs=1.0, budget=budget, met=met)


def rows() -> list[Row]:
    """Measure the jobs, and one operation for what its count explains."""
    cold = recorder.cold_us()
    found = []
    for kind in ("ddp", "fsdp2"):
        found += rows_of(kind, "", run_job(kind, {}, SECONDS_MAX, with_hooks=True), cold)
        for variant, settings in VARIANTS.items():
            found += rows_of(kind, variant, run_job(kind, settings, VARIANT_SECONDS_MAX), cold)
    return found


def main() -> None:
    """Run one job, or be a rank of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("ddp", "fsdp2"))
    parser.add_argument("--seconds", type=float, default=SECONDS_MAX)
    parser.add_argument("--hooks", action="store_true", help="measure the hooks at the end")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        print(json.dumps(run_rank(given.kind, given.seconds, given.hooks)))
    else:
        show(rows_of(given.kind, "", run_job(given.kind, {}, given.seconds, given.hooks), recorder.cold_us()))


if __name__ == "__main__":
    main()
