"""What does a post-mortem cost against torchfrtrace on the same files? python -m tests.bench.postmortem

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


def run(name: str, code: str, *arguments: str) -> Run:
    """Run a piece of Python and measure its process."""
    with tempfile.TemporaryFile("w+") as output:
        began = time.monotonic()
        child = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=output, stderr=output)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - began
        output.seek(0)
        return Run(
            name=name,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_mb=usage.ru_maxrss / 1024,
            wall_s=wall_s,
            output=output.read(),
            exit_code=child.returncode,
        )


def main() -> int:
    """Run the bench. Exit code 1 if a number is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--mixed", action="store_true", help="world, tensor and data parallel groups in turn")
    parser.add_argument("--ours-only", action="store_true")
    chosen = parser.parse_args()
    lost = chosen.ranks // 3
    with tempfile.TemporaryDirectory(prefix="ncclwatch-bench-") as name:
        folder = Path(name)
        make(folder, chosen.ranks, chosen.entries, lost, chosen.mixed)
        megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        print(f"{chosen.ranks} ranks x {chosen.entries} entries, {megabytes:.0f} MB; rank {lost} stops {AHEAD} early")
        ours = run("analyze", OURS, name)
        named = f"rank {lost} " in ours.output
        _tell(ours, named)
        if chosen.ours_only:
            return 0 if named else 1
        bare = run("import torch", RIVAL_IMPORT)
        rival = run("torchfrtrace", RIVAL, name, "-p", PREFIX)
        again = run("analyze", OURS, name)
    _tell(bare, None)
    rival_named = f"{{{lost}}}" in rival.output
    _tell(rival, rival_named)
    _tell(again, f"rank {lost} " in again.output)
    # Before and after the rival, so that what else the machine does weighs on both.
    mean_s = (ours.cpu_s + again.cpu_s) / 2
    cpu, own = rival.cpu_s / mean_s, (rival.cpu_s - bare.cpu_s) / mean_s
    memory = rival.peak_mb / max(ours.peak_mb, again.peak_mb)
    print(f"CPU {cpu:.1f}x less, {own:.1f}x without its import of torch; memory {memory:.1f}x less")
    print(f"asked: {CPU_RATIO_MIN:.0f}x and {MEMORY_RATIO_MIN:.0f}x, both naming rank {lost}")
    return 0 if named and rival_named and own >= CPU_RATIO_MIN and memory >= MEMORY_RATIO_MIN else 1


def _tell(done: Run, named: bool | None) -> None:
    said = "" if named is None else ", names the rank" if named else ", DOES NOT name the rank"
    used = f"{done.cpu_s:7.2f} s CPU {done.peak_mb:8.1f} MB {done.wall_s:7.1f} s"
    print(f"  {done.name:14} {used}, exit {done.exit_code}{said}", flush=True)
    if named is False:
        print(done.output[-2000:])


if __name__ == "__main__":
    sys.exit(main())
