"""Runs a program of the zoo, and ends everything that it leaves behind.

A job runs in a session of its own. Everything it starts inherits the name of its onset file in
ZOO_ONSET; by that its processes are found again, also those that left the session.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

VERDICT = b"ncclwatch: CRITICAL"
LEFTOVER_WAIT_S = 10.0
Launcher = Callable[[Path, int, tuple[str, ...]], tuple[str, ...]]
_TICK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended, and when what was seen (``time.time()`` of this machine)."""

    exit_code: int | None  # None: it had to be killed at its time limit
    wall_s: float
    onset_at: float | None
    verdict_at: float | None
    leftovers: tuple[str, ...]  # command lines of processes that outlived it
    last_words: str  # the last line on standard error
    standstill: str = ""  # if it had to be killed: its output's tail and the stacks of its processes

    @property
    def onset_to_verdict_s(self) -> float | None:
        if self.onset_at is None or self.verdict_at is None:
            return None
        return self.verdict_at - self.onset_at


class Job:
    """One running job. Leaving the context ends everything that it started."""

    def __init__(self, argv: tuple[str, ...], directory: Path, extra: Mapping[str, str]) -> None:
        self._directory = directory
        self.onset_file = directory / "onset"
        self.verdict_at: float | None = None
        self._started_at = time.time()
        directory.mkdir(parents=True, exist_ok=True)
        # A short path of its own: loader processes make sockets in it, whose names have 108 characters at most.
        self._temporary = tempfile.TemporaryDirectory(prefix="zoo-", ignore_cleanup_errors=True)
        self._runtime = tempfile.TemporaryDirectory(prefix="zoo-", dir="/dev/shm", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment(extra),
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = (
            self._copy(self._process.stdout, directory / "stdout"),
            self._copy(self._process.stderr, directory / "stderr"),
        )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._temporary.cleanup()
        self._runtime.cleanup()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def onset_at(self) -> float | None:
        try:
            return float(self.onset_file.read_text())
        except (OSError, ValueError):
            return None

    def processes(self) -> tuple[int, ...]:
        """Return the pids of all that this job started and that still lives."""
        return processes_with(f"ZOO_ONSET={self.onset_file}")

    def wait(self, timeout_s: float) -> Ended:
        """Wait for the end of the job and of all that it started."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        exit_code = self._process.poll()
        wall_s = time.time() - self._started_at
        standstill = ""
        if exit_code is None:
            standstill = self._standstill()
            self.kill()
        leftovers = self._leftovers()
        self.kill()
        for reader in self._readers:
            reader.join(timeout=5.0)
        return Ended(
            exit_code=exit_code,
            wall_s=wall_s,
            onset_at=self.onset_at(),
            verdict_at=self.verdict_at,
            leftovers=leftovers,
            last_words=self._last_words(),
            standstill=standstill,
        )

    def kill(self) -> None:
        """Kill what this job started, and nothing else."""
        deadline = time.monotonic() + 5.0
        while (pids := self.processes()) and time.monotonic() < deadline:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_TICK_S)
        self._process.wait()

    def _standstill(self) -> str:
        """Return what is needed to understand why the job did not end: a CI has no second look."""
        parts = []
        for name in ("stdout", "stderr"):
            parts.append(f"-- {name}\n" + (self._directory / name).read_text(errors="replace")[-2000:])
        for pid in self.processes():
            parts.append(f"-- {pid} {_command_line(pid)}\n{stacks(pid)}")
        return "\n".join(parts)

    def _last_words(self) -> str:
        lines = (self._directory / "stderr").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _leftovers(self) -> tuple[str, ...]:
        deadline = time.monotonic() + LEFTOVER_WAIT_S
        while (pids := self.processes()) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        return tuple(f"{pid} {_command_line(pid)}" for pid in pids)

    def _copy(self, pipe: IO[bytes], target: Path) -> threading.Thread:
        thread = threading.Thread(target=self._copy_lines, args=(pipe, target), daemon=True)
        thread.start()
        return thread

    def _copy_lines(self, pipe: IO[bytes], target: Path) -> None:
        with pipe, target.open("wb", buffering=0) as file:
            for line in pipe:
                if VERDICT in line and self.verdict_at is None:
                    self.verdict_at = time.time()
                file.write(line)

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
        own = {
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": self._temporary.name,
            "ZOO_ONSET": str(self.onset_file),
            # An agent serves all jobs of its user on a node; one of our own makes runs independent of each other.
            "NCCLWATCH_RUNTIME_DIR": self._runtime.name,
        }
        return {**inherited, **own, **extra}


def torchrun(program: Path, nproc: int, arguments: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the command that starts a program the way its user would."""
    return (_script("torchrun"), "--standalone", f"--nproc-per-node={nproc}", str(program), *arguments)


def watched(report: Path, on_hang: str, command: tuple[str, ...], server: str = "") -> tuple[str, ...]:
    """Return the command that runs another one under ncclwatch, with a server that is there or else one of its own."""
    there = ("--server", server) if server else ()
    return (_script("ncclwatch"), "run", "--on-hang", on_hang, "--report", str(report), *there, "--", *command)


def processes_with(setting: str) -> tuple[int, ...]:
    """Return the living processes in whose environment a setting stands."""
    wanted = setting.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # A zombie has an empty environment; a process of another user cannot be one of ours.
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return tuple(sorted(found))


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "(gone)"


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with, nothing if it is gone or not ours."""
    try:
        settings = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(setting.split("=", 1) for setting in settings if "=" in setting)


def stacks(pid: int) -> str:
    """Return what each Python thread of a process is in, as py-spy writes it."""
    command = [_script("py-spy"), "dump", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20.0)
    except subprocess.TimeoutExpired:
        return "(no stack within 20 s)"
    return done.stdout or done.stderr


def _script(name: str) -> str:
    beside = Path(sys.executable).parent / name
    if not beside.exists():
        raise SystemExit(f"{beside} does not exist: install it for this interpreter ({sys.executable})")
    return str(beside)
