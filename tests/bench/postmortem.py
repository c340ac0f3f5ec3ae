"""Compares a post-mortem's cost with torchfrtrace's on the same files. python -m tests.bench.postmortem

Makes the dumps of a job in which one rank stopped before the newest collectives, and lets both tools read
them, each in a process of its own. CPU is user and system time of that process, memory its peak resident
set; torchfrtrace's `import torch` is told apart, since it is not its analysis.
"""

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.row import Row, show

PREFIX = "nccl_trace_rank_"
FRAMES = 12
AHEAD = 20  # collectives that the others issued after the one that the lost rank did not come to
CPU_RATIO_MIN = 12.0
MEMORY_RATIO_MIN = 10.0
BEGAN_NS = 1_780_000_000_000_000_000

RIVAL = "import sys; from torch.distributed.flight_recorder.fr_trace import main; main(sys.argv[1:])"
RIVAL_IMPORT = "import torch.distributed.flight_recorder.fr_trace"
OURS = "import sys; from ncclwatch.cli.main import main; main(['analyze', '--text', *sys.argv[1:]])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One finished child."""

    name: str
    cpu_s: float
    peak_mb: float
    wall_s: float
    output: str
    exit_code: int


def make(folder: Path, ranks: int, entries: int, lost: int, mixed: bool) -> None:
    """Write the dumps of all ranks."""
    frames = [
        {"name": f"function_{n}", "filename": f"/opt/site-packages/torch/layer_{n}.py", "line": n}
        for n in range(FRAMES - 1)
    ]
    frames.append({"name": "step", "filename": "/home/user/train.py", "line": 44})
    written_ns = BEGAN_NS + entries * 1_000_000 + 620_000_000_000
    for rank in range(ranks):
        groups = _groups(rank, ranks, mixed)
        count = entries - (AHEAD if rank == lost else 0)
        value = {
            "version": "2.10",
            "pg_config": {name: {"name": name, "desc": desc, "ranks": str(who)} for name, desc, who in groups},
            "comm_lib_version": "2.27.3",
            "pg_status": {},
            "entries": [_entry(n, entries, groups[n % len(groups)], len(groups), frames) for n in range(count)],
        }
        path = folder / f"{PREFIX}{rank}"
        path.write_bytes(pickle.dumps(value, protocol=2))
        os.utime(path, ns=(written_ns, written_ns))


def _groups(rank: int, ranks: int, mixed: bool) -> list[tuple[str, str, list[int]]]:
    world = ("0", "default_pg", list(range(ranks)))
    if not mixed:
        return [world]
    first = rank // 8 * 8
    return [
        world,
        (str(1 + rank // 8), "tp", list(range(first, first + 8))),
        (str(1 + ranks // 8 + rank % 8), "dp", list(range(rank % 8, ranks, 8))),
    ]


def _entry(
    number: int, entries: int, group: tuple[str, str, list[int]], groups: int, frames: list[dict[str, object]]
) -> dict[str, object]:
    at_ns = BEGAN_NS + number * 1_000_000
    done = number < entries - AHEAD
    return {
        "frames": frames, "record_id": number, "pg_id": number % groups, "process_group": (group[0], group[1]),
        "thread_name": "python3", "thread_id": "140485111331712", "collective_seq_id": number // groups + 1,
        "p2p_seq_id": 0, "op_id": number // groups + 1, "profiling_name": "nccl:all_reduce",
        "time_created_ns": at_ns, "input_sizes": [[1024, 1024]], "input_dtypes": ["Float"],
        "output_sizes": [[1024, 1024]], "output_dtypes": ["Float"], "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": at_ns + 1 if done else None,
        "time_discovered_completed_ns": at_ns + 2 if done else None, "retired": done, "timeout_ms": 600_000,
        "is_p2p": False,
    }  # fmt: skip


# What wait4 tells is not below what this process had when it forked.
_TELL_PEAK = """
import atexit, os, re
def tell():
    with open("/proc/self/status") as status, open(os.environ["PEAK"], "w") as peak:
        peak.write(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1])
atexit.register(tell)
"""


def run(name: str, code: str, *arguments: str) -> Run:
    """Run a piece of Python and measure its process."""
    with tempfile.TemporaryFile("w+") as output, tempfile.NamedTemporaryFile("r") as peak:
        began = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, "-c", _TELL_PEAK + code, *arguments],
            stdout=output, stderr=output, env={**os.environ, "PEAK": peak.name},
        )  # fmt: skip
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - began
        output.seek(0)
        return Run(
            name=name,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_mb=int(peak.read()) / 1024,
            wall_s=wall_s,
            output=output.read(),
            exit_code=child.returncode,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What both tools used on the same files, and whether they named the rank that stopped."""

    ours: Run
    again: Run  # before and after the rival, so that what else the machine does weighs on both
    rival: Run
    bare: Run  # the rival's import of torch
    named: bool
    rival_named: bool

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds of ours."""
        return (self.ours.cpu_s + self.again.cpu_s) / 2

    @property
    def peak_mb(self) -> float:
        """Return the most memory of ours."""
        return max(self.ours.peak_mb, self.again.peak_mb)


def compare(ranks: int, entries: int, *, mixed: bool) -> Compared:
    """Make the dumps and let both tools read them."""
    lost = ranks // 3
    with tempfile.TemporaryDirectory(prefix="ncclwatch-bench-") as name:
        make(Path(name), ranks, entries, lost, mixed)
        ours = run("analyze", OURS, name)
        bare = run("import torch", RIVAL_IMPORT)
        rival = run("torchfrtrace", RIVAL, name, "-p", PREFIX)
        again = run("analyze", OURS, name)
    named = all(f"rank {lost} " in done.output for done in (ours, again))
    for done, right in ((ours, named), (rival, f"{{{lost}}}" in rival.output)):
        if not right:
            print(done.output[-2000:])
    return Compared(
        ours=ours, again=again, rival=rival, bare=bare, named=named, rival_named=f"{{{lost}}}" in rival.output
    )


def rows(ranks: int = 1024, entries: int = 1000, *, mixed: bool = False) -> list[Row]:
    """Measure, without torchfrtrace's import of torch, which is not its analysis."""
    found = compare(ranks, entries, mixed=mixed)
    if not found.named:
        raise SystemExit(f"analyze does not name rank {ranks // 3}")
    what = f"analyze, {ranks:,} ranks x {entries:,} entries"
    peer = "torchfrtrace" if found.rival_named else "torchfrtrace (names nobody)"
    theirs_s = found.rival.cpu_s - found.bare.cpu_s
    return [
        Row(what=what, unit="s of CPU", ours=found.cpu_s, peer=peer, theirs=theirs_s,
            budget=f">= {CPU_RATIO_MIN:g} x less", met=theirs_s >= CPU_RATIO_MIN * found.cpu_s),
        Row(what=what, unit="MB at most", ours=found.peak_mb, peer=peer, theirs=found.rival.peak_mb,
            budget=f">= {MEMORY_RATIO_MIN:g} x less", met=found.rival.peak_mb >= MEMORY_RATIO_MIN * found.peak_mb),
    ]  # fmt: skip


def main() -> int:
    """Run the bench. Exit code 1 if a number is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--mixed", action="store_true", help="world, tensor and data parallel groups in turn")
    chosen = parser.parse_args()
    found = rows(chosen.ranks, chosen.entries, mixed=chosen.mixed)
    show(found)
    return 0 if all(row.met for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
