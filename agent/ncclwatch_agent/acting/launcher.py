"""Finds the torchrun that started the ranks of a job on this node, and holds it while they live.

Between it and a rank there may be a wrapper (`torchrun --no-python`, a profiler), which has the environment that
torchrun has made for the rank. torchrun itself has not: where a rank of another job has started it, it has the
environment of that rank, with another store. What started ranks in another way, such as `elastic_launch` in a notebook,
is never signalled.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path

from ncclwatch_agent.process.pidfd import PidFd

_OF_A_RANK = b"TORCHELASTIC_RESTART_COUNT="
_STORE = (b"MASTER_ADDR=", b"MASTER_PORT=")
_PROGRAMS = ("torchrun", "accelerate")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_ABOVE_MAX = 8  # wrappers between torchrun and a rank
_ARGUMENTS_MAX = 8  # of a command that are looked at


class Launcher:
    """A torchrun of this user."""

    def __init__(self, pid: int) -> None:
        """Hold the process that has this number now."""
        self.pid = pid
        self._held = PidFd(pid)

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        if self._held.fd < 0:
            return False
        ended = select.poll()  # select() knows no descriptor above 1023
        ended.register(self._held.fd, select.POLLIN)
        return not ended.poll(0)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, to that process and never to another one that has its number later."""
        if self._held.fd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._held.fd, number)

    def close(self) -> None:
        """Let go of it."""
        self._held.close()


def launcher_of(ranks: Iterable[int]) -> Launcher | None:
    """Return the torchrun above processes of ranks, None unless it is one and the same of this user's."""
    above = {_torchrun_above(pid) for pid in ranks}
    pid = above.pop() if len(above) == 1 else 0
    return Launcher(pid) if pid else None


def _torchrun_above(pid: int) -> int:
    """Return the number of the torchrun that started a process, 0 if there is none."""
    own = _store(_read(pid, "environ"))
    for _ in range(_ABOVE_MAX):
        pid = _parent(pid)
        if pid <= 1 or pid == os.getpid() or not _is_mine(pid):
            return 0
        environ = _read(pid, "environ")
        if not environ:
            return 0
        if _OF_A_RANK not in environ or (own and _store(environ) != own):
            return pid if _is_torchrun(_read(pid, "cmdline")) else 0
    return 0


def _store(environ: bytes) -> list[bytes]:
    """Return what an environment says of where ranks meet: the same for the ranks of one job, and for no other job."""
    return sorted(line for line in environ.split(b"\0") if line.startswith(_STORE))


def _is_torchrun(cmdline: bytes) -> bool:
    words = [os.fsdecode(word) for word in cmdline.split(b"\0")[:_ARGUMENTS_MAX]]
    return any(word in _MODULES or Path(word).name in _PROGRAMS for word in words)


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0


def _is_mine(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        return False


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
