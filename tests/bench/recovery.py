"""Measures how long a job stands still that hangs and is started again: python -m tests.bench.recovery [RUNS].

Two nodes with two ranks each, gloo, a checkpoint every five steps (needs root: each node has its own network). The last
rank is stopped by SIGSTOP. Measured from the stop until all ranks have finished the first step of the next attempt:

- ncclwatch acts, by the policy that it ships;
- nobody acts: the ranks fail by the timeout of their group, and torchrun starts them again;
- NVRx's `ft_launcher` with its own timeouts, and with those that it calculates. Where it is not on the PATH, set
  FT_LAUNCHER to it.

Timeouts of minutes are not waited for: the job runs with a short one, and the difference is added.
"""

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import IO

from psutil import NoSuchProcess, Process

from tests.bench.row import Row, show
from tests.integration.cluster import Cluster
from tests.integration.launch import PROGRAMS

RUNS, PEER_RUNS = 20, 3
RANKS = 4
END_S = 240.0
SHORT_S = 20.0  # in the place of a timeout of minutes
NCCL_S, GLOO_S = 600.0, 1800.0  # torch's defaults
NVRX_S = 2700.0  # rank_heartbeat_timeout of NVRx
Start = Callable[[Cluster, Path], list["Popen[str]"]]
VERDICT, ENDING = "ncclwatch: CRITICAL", "ncclwatch: ending the ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The moments of one run, in seconds since the stop."""

    ended_s: float  # no rank of the first attempt is left
    began_s: float  # all ranks of the next one have imported torch
    stepped_s: float
    verdict_s: float = 0.0
    decided_s: float = 0.0
    load: float = 0.0  # of the machine in the last minute

    @property
    def parts(self) -> dict[str, float]:
        """Return how long each part took."""
        return {
            "to the verdict": self.verdict_s,
            "patience": self.decided_s - self.verdict_s,
            "ending the ranks": self.ended_s - self.decided_s,
            "torchrun starts new ones, torch imported": self.began_s - self.ended_s,
            "process group, checkpoint, first step": self.stepped_s - self.began_s,
        }


class Output:
    """What the launchers of a job print, each line with the time at which it came."""

    def __init__(self, jobs: list["Popen[str]"]) -> None:
        """Read until they end."""
        self.lines: list[tuple[float, str]] = []
        self._readers = [threading.Thread(target=self._read, args=(each.stderr,), daemon=True) for each in jobs]
        self._readers += [threading.Thread(target=self._read, args=(each.stdout,), daemon=True) for each in jobs]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            self.lines.append((time.time(), line))

    def first(self, words: str) -> float:
        """Return when the first line with these words came, 0 if none has."""
        return min((at for at, line in self.lines if words in line), default=0.0)

    @property
    def text(self) -> str:
        """Return all of it."""
        return "".join(line for _, line in sorted(self.lines))


def watched(cluster: Cluster, directory: Path) -> list["Popen[str]"]:
    """Start the job with agents that act by the policy that ncclwatch ships."""
    return [
        cluster.torchrun(
            node, "resumes.py", str(directory), "watched", ranks=2, restarts=1, NCCLWATCH_ON_HANG="policy"
        )
        for node in (0, 1)
    ]  # fmt: skip


def by_timeout(cluster: Cluster, directory: Path) -> list["Popen[str]"]:
    """Start the job without ncclwatch, with a timeout of its group."""
    return [
        cluster.torchrun(node, "resumes.py", str(directory), f"timeout={SHORT_S:g}", ranks=2, restarts=1)
        for node in (0, 1)
    ]


def by_heartbeats(cluster: Cluster, directory: Path) -> list["Popen[str]"]:
    """Start the job under NVRx, with a timeout of its heartbeats."""
    return _under_nvrx(cluster, directory, "--ft-rank-heartbeat-timeout", f"{SHORT_S:g}")


def by_calculated_heartbeats(cluster: Cluster, directory: Path) -> list["Popen[str]"]:
    """Start the job under NVRx, which calculates its timeouts from the heartbeats until each checkpoint."""
    return _under_nvrx(cluster, directory, "--ignore-missing-fault-tol-cfg", more=("calculated",))


def _under_nvrx(cluster: Cluster, directory: Path, *options: str, more: tuple[str, ...] = ()) -> list["Popen[str]"]:
    hosts = directory / "hosts"  # it looks for the address of its own host name
    names = {"localhost": "127.0.0.1", **{f"node{node}": each for node, each in enumerate(cluster.addresses)}}
    hosts.write_text("".join(f"{address} {name}\n" for name, address in names.items()))
    named = ("unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh")
    return [
        cluster.nodes[node].execute(
            *named, ft_launcher(), "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"{cluster.addresses[0]}:29511", "--rdzv-id", "recovery", "--local-addr",
            cluster.addresses[node], "--max-restarts", "1", *options, str(PROGRAMS / "resumes.py"), str(directory),
            "heartbeats", *more, **cluster.environment(node),
        )
        for node in (0, 1)
    ]  # fmt: skip


def ft_launcher() -> str:
    """Return NVRx's launcher, "" if there is none."""
    return os.environ.get("FT_LAUNCHER") or shutil.which("ft_launcher") or ""


def once(start: Start) -> Recovery:
    """Run one job to its end."""
    directory = Path(tempfile.mkdtemp(prefix="recovery-", dir="/dev/shm"))
    try:
        with Cluster(2, directory) as cluster:
            jobs = start(cluster, directory)
            output = Output(jobs)
            onset, _ = _noted(directory / "onset", jobs, output)
            ended = _end([_noted(directory / f"began0-{rank}", jobs, output)[1] for rank in range(RANKS)])
            began, stepped = (
                max(_noted(directory / f"{name}1-{rank}", jobs, output)[0] for rank in range(RANKS))
                for name in ("began", "stepped")
            )
            load = os.getloadavg()[0]
            codes = [job.wait(END_S) for job in jobs]
            if codes != [0, 0]:
                raise SystemExit(f"the job ended with {codes}:\n{output.text}")
            return Recovery(
                ended_s=ended - onset, began_s=began - onset, stepped_s=stepped - onset, load=load,
                verdict_s=max(output.first(VERDICT) - onset, 0.0), decided_s=max(output.first(ENDING) - onset, 0.0),
            )  # fmt: skip
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _noted(file: Path, jobs: list["Popen[str]"], output: Output) -> tuple[float, int]:
    """Wait for what a rank writes down: a time and its process."""
    deadline = time.monotonic() + END_S
    while not file.exists():
        if time.monotonic() > deadline or all(job.poll() is not None for job in jobs):
            raise SystemExit(f"{file.name} was not written:\n{output.text}")
        time.sleep(0.02)
    at, pid = file.read_text().split()
    return float(at), int(pid)


def _end(pids: list[int]) -> float:
    """Wait for the end of processes, and return the time of the last one."""
    for pid in pids:
        with contextlib.suppress(NoSuchProcess):
            Process(pid).wait(END_S)
    return time.time()


def spread(runs: Sequence[Recovery]) -> dict[str, list[float]]:
    """Return the time of each part, and of all, in each run."""
    parts = {name: [run.parts[name] for run in runs] for name in runs[0].parts}
    return {"onset to first step": [run.stepped_s for run in runs], **parts}


def measured(name: str, start: Start, runs: int) -> list[Recovery]:
    """Run a job some times, and print each."""
    found = []
    for number in range(runs):
        found.append(run := once(start))
        parts = ", ".join(f"{part} {took:.1f}" for part, took in run.parts.items())
        print(f"{name} {number + 1}: {run.stepped_s:.1f} s ({parts}; load {run.load:.1f})", file=sys.stderr, flush=True)
    return found


def rows(runs: int = RUNS) -> list[Row]:
    """Measure ncclwatch and what else starts a hung job again."""
    ours = spread(measured("ncclwatch", watched, runs))
    bare = [run.stepped_s for run in measured(f"a group timeout of {SHORT_S:g} s", by_timeout, PEER_RUNS)]
    peers = [
        (f"NCCL's timeout of {NCCL_S:g} s (counted)", [NCCL_S - SHORT_S + each for each in bare]),
        (f"gloo's timeout of {GLOO_S:g} s (counted)", [GLOO_S - SHORT_S + each for each in bare]),
    ]
    if ft_launcher():
        short = measured(f"NVRx, heartbeats of {SHORT_S:g} s", by_heartbeats, PEER_RUNS)
        calculated = measured("NVRx, calculated heartbeats", by_calculated_heartbeats, PEER_RUNS)
        peers += [
            (f"NVRx's timeout of {NVRX_S:g} s (counted)", [NVRX_S - SHORT_S + each.stepped_s for each in short]),
            ("NVRx's calculated timeouts", [each.stepped_s for each in calculated]),
        ]
    found = []
    for name, times in ours.items():
        for what, of in (("median", statistics.median), ("maximum", max)):
            beside = peers if times is ours["onset to first step"] else [("", [])]
            found += [
                Row(
                    what=f"{name}, {what}", unit="s", ours=of(times),
                    peer=f"{peer}, {len(theirs)} runs" if peer else "", theirs=of(theirs) if peer else None,
                )
                for peer, theirs in beside
            ]  # fmt: skip
    return found


if __name__ == "__main__":
    show(rows(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS))
