"""Checks that each program does what its truth says when nobody watches it."""

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .jobs import Job, environment_of, stacks, torchrun
from .truth import Expect, Truth

SETTLE_S = 5.0  # from the onset to the first look
LOOK_S = 3.0  # how long the processes are looked at
IDLE_CPU_MAX = 0.1  # of a core and process; torchrun itself polls at about 0.03

# Stands in for the package, so that the programs run where it is not installed.
STUB = """
def attach(*args, **kwargs): ...
def detach(*args, **kwargs): ...
def step(*args, **kwargs): ...
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What one program did without ncclwatch, and what was wrong about it."""

    program: str
    seen: str
    wrong: str = ""
    places: tuple[str, ...] = ()  # of a hang: in which function, called from which line of the program, each rank is


def confirm(truth: Truth, directory: Path) -> Confirmation:
    """Run a program without ncclwatch and see whether it hangs, crashes or is healthy."""
    stub = directory / "stub"
    stub.mkdir(parents=True)
    (stub / "ncclwatch.py").write_text(STUB)
    path = os.pathsep.join(filter(None, (str(stub), os.environ.get("PYTHONPATH"))))
    command = torchrun(truth.program, truth.nproc, truth.arguments)
    with Job(command, directory, {"PYTHONPATH": path}) as job:
        if truth.expect is Expect.HANG:
            return _look_at_hang(truth, job)
        ended = job.wait(truth.timeout_s)
    seen = f"exit code {ended.exit_code} after {ended.wall_s:.0f} s"
    failed = ended.exit_code is not None and ended.exit_code != 0
    right = failed if truth.expect is Expect.CRASH else ended.exit_code == 0
    wrong = "" if right else f"expected {truth.expect.value}"
    if right and truth.expect is Expect.CRASH and ended.onset_at is None:
        wrong = "it crashed before the onset"
    return Confirmation(program=truth.name, seen=seen, wrong=wrong)


def _look_at_hang(truth: Truth, job: Job) -> Confirmation:
    name = truth.name
    deadline = time.monotonic() + truth.timeout_s
    while job.onset_at() is None and job.exit_code is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if job.onset_at() is None:
        return Confirmation(program=name, seen=f"exit code {job.exit_code}", wrong="no onset")
    time.sleep(SETTLE_S)
    before = {pid: _cpu_s(pid) for pid in job.processes()}
    time.sleep(LOOK_S)
    if job.exit_code is not None:
        return Confirmation(program=name, seen=f"exit code {job.exit_code}", wrong="it does not hang")
    busiest = max((_cpu_s(pid) - cpu_s) / LOOK_S for pid, cpu_s in before.items())
    return Confirmation(
        program=name,
        seen=f"{len(before)} processes still there {SETTLE_S + LOOK_S:.0f} s after the onset, "
        f"the busiest at {busiest:.0%} of a core",
        wrong="" if busiest <= IDLE_CPU_MAX else "it computes",
        places=tuple(_places(truth, before)),
    )


def _places(truth: Truth, pids: Iterable[int]) -> Iterator[str]:
    """Say where each thread is that runs the program's code or waits in torch.distributed for it."""
    own = {path.name for path in truth.program.parent.glob("*.py")}
    for pid in pids:
        rank = environment_of(pid).get("RANK")
        for thread in re.split(r"^Thread ", stacks(pid), flags=re.MULTILINE)[1:] if rank else ():
            frames = [line.strip() for line in thread.splitlines()[1:] if "(" in line]
            ours = next((frame for frame in frames if any(f"{name}:" in frame for name in own)), "")
            name = re.search(r'"(.*)"', thread.splitlines()[0])
            if ours or any("torch/distributed/" in frame for frame in frames[:2]):
                yield f"rank {rank} {name[1] if name else ''}: {frames[0]} from {ours or 'a thread of torch'}"


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
