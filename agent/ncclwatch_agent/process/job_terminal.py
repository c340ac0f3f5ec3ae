"""Brings a verdict to the terminal of a job, from an agent that inherited no terminal.

Through /proc/<pid>/fd/2 of the launcher or of a rank. A terminal and a pipe are opened anew,
without blocking; a plain file is shared with its writer where the kernel allows it, because a
second writer with an offset of its own would be overwritten.
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclwatch_agent.process.pidfd import take_fd
from ncclwatch_agent.process.procfs import user_of

WRITE_S_MAX = 2.0
RETRY_S = 0.05
_LAUNCHERS = ("torchrun", "torch.distributed", "accelerate", "deepspeed", "lightning", "mpirun", "srun", "composer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A process whose standard error may be the job's terminal."""

    pid: int  # 0: it has ended, but whoever started it may still be there
    parent: int


def is_launcher(arguments: Sequence[str]) -> bool:
    """Whether a command line is that of a program that starts ranks and shows what they print."""
    return any(word in argument for argument in arguments[:6] for word in _LAUNCHERS)


def writers(ranks: Sequence[Candidate]) -> list[int]:
    """Return the pids whose standard error to try, the best first: launchers, then ranks from the lowest."""
    found: dict[int, None] = {}
    for rank in ranks:
        with contextlib.suppress(OSError):
            if rank.parent > 1 and user_of(rank.parent) == os.geteuid():
                arguments = Path(f"/proc/{rank.parent}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if is_launcher(arguments):
                    found[rank.parent] = None
    return [*found, *(rank.pid for rank in ranks if rank.pid and user_of(rank.pid) == os.geteuid())]


class Terminal:
    """The terminal of one job. What it can hold open without harm it keeps, so that the last word arrives too."""

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._looked = False

    def prepare(self, ranks: Sequence[Candidate]) -> None:
        """Keep the job's terminal or log file open: its launcher may be gone when there is something to say.

        A pipe is not kept: whoever reads it would wait for us to close it.
        """
        if self._looked or not ranks:
            return
        self._looked = True
        for pid in writers(ranks):
            if not _is_pipe(pid):
                fd = open_stderr(pid)
                if fd >= 0:
                    self._kept.append(fd)
                    return

    async def write(self, ranks: Sequence[Candidate], text: str) -> bool:
        """Put text on the terminal. Never blocks; returns whether all of it got there."""
        data = text.encode(errors="replace")
        data = data if data.endswith(b"\n") else data + b"\n"
        for fd in self._kept:
            if await _write(fd, data):
                return True
        for pid in writers(ranks):
            fd = open_stderr(pid)
            if fd < 0:
                continue
            try:
                if await _write(fd, data):
                    return True
            finally:
                os.close(fd)
        return False

    def close(self) -> None:
        """Let go of the terminal."""
        while self._kept:
            os.close(self._kept.pop())


def open_stderr(pid: int) -> int:
    """Return a descriptor that writes where a process's standard error goes, -1 if there is no way."""
    path = f"/proc/{pid}/fd/2"
    try:
        kind = Path(path).stat().st_mode
        if stat.S_ISREG(kind):
            shared = take_fd(pid, 2)
            if shared >= 0:
                return shared
        elif not (stat.S_ISFIFO(kind) or stat.S_ISCHR(kind)) or _is_null(path):
            return -1
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(path, flags)
    except OSError:
        return -1


def _is_pipe(pid: int) -> bool:
    try:
        return stat.S_ISFIFO(Path(f"/proc/{pid}/fd/2").stat().st_mode)
    except OSError:
        return True


def _is_null(path: str) -> bool:
    """Whether this is /dev/null: what is written there nobody reads, so another way is better."""
    with contextlib.suppress(OSError):
        return Path(path).stat().st_rdev == Path(os.devnull).stat().st_rdev
    return False


async def _write(fd: int, data: bytes) -> bool:
    """Write all of it within WRITE_S_MAX, waiting in between without blocking the agent."""
    deadline = asyncio.get_running_loop().time() + WRITE_S_MAX
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(RETRY_S)
        except OSError:
            return False
    return True
