"""Reads /proc cheaply and safely, and says what its files mean.

Files are kept open and read with pread: a kept descriptor belongs to one process for ever, so
a reused pid is never read by mistake, and a read costs a microsecond.
"""

import contextlib
import os
import platform
from typing import NamedTuple

from ncclwatch.contract.model.rank import OF_STANDARD_INPUT, ProcessState

READ_BYTES_MAX = 4096
ENVIRON_BYTES_MAX = 1024 * 1024

_STATES = {
    b"R": ProcessState.RUNNING, b"S": ProcessState.SLEEPING, b"I": ProcessState.SLEEPING,
    b"D": ProcessState.DISK_WAIT, b"T": ProcessState.STOPPED, b"t": ProcessState.TRACED,
    b"Z": ProcessState.ZOMBIE, b"X": ProcessState.GONE, b"x": ProcessState.GONE,
}  # fmt: skip
_SYSCALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 23: "select", 24: "sched_yield", 34: "pause", 35: "nanosleep",
        43: "accept", 45: "recvfrom", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 2: "open",
        75: "fdatasync", 277: "sync_file_range", 306: "syncfs", 26: "msync",
        202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 271: "ppoll",
        281: "epoll_pwait", 270: "pselect6", 42: "connect", 288: "accept4",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write",
        72: "pselect6", 73: "ppoll", 82: "fsync", 83: "fdatasync",
        84: "sync_file_range", 267: "syncfs", 227: "msync", 95: "waitid", 98: "futex", 101: "nanosleep",
        115: "clock_nanosleep", 124: "sched_yield", 202: "accept", 207: "recvfrom", 212: "recvmsg", 260: "wait4",
    },
}  # fmt: skip
# The first argument where a call waits for descriptor 0: what is read, or one more than the highest that is waited for.
_STANDARD_INPUT = {"read": "0x0", "select": "0x1", "pselect6": "0x1"}


class Stat(NamedTuple):
    """The fields of /proc/<pid>/stat that matter here."""

    state: ProcessState
    parent: int
    cpu_ticks: int  # user and system, of all its threads, without its children
    reaped_ticks: int  # of the children that have ended and were waited for, and of theirs
    start_ticks: int
    exit_status: int  # as waitpid() gives it; 0 while it runs, and where the kernel hides it


def parse_stat(data: bytes) -> Stat | None:
    """Return the fields of a stat file; None for anything else. The name in it may hold any character."""
    fields = data[data.rfind(b")") + 1 :].split(None, 20)
    try:
        rest = fields[20].split() if len(fields) > 20 and fields[0] == b"Z" else []
        return Stat(
            _STATES.get(fields[0], ProcessState.UNKNOWN),
            int(fields[1]),
            int(fields[11]) + int(fields[12]),
            int(fields[13]) + int(fields[14]),
            int(fields[19]),
            int(rest[29]) if len(rest) > 29 else 0,
        )
    except (IndexError, ValueError):
        return None


def parse_io(data: bytes) -> int | None:
    """Return bytes read and written so far, through the page cache or not; None if nothing is told."""
    fields = data.split()
    told = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        return sum(int(told[name]) for name in (b"rchar:", b"wchar:", b"read_bytes:", b"write_bytes:"))
    except (KeyError, ValueError):
        return None


def kernel_place(syscall: str, wait_channel: str, machine: str = platform.machine()) -> str:
    """Return where a thread sits in the kernel, as "futex (futex_do_wait)"; "" if it runs or nobody may look."""
    number, first = [*syscall.split()[:2], "", ""][:2]
    call = call_name(number, machine)
    if _STANDARD_INPUT.get(call) == first:
        call = f"{call} {OF_STANDARD_INPUT}"
    channel = "" if wait_channel in ("", "0") else wait_channel
    return f"{call} ({channel})" if call and channel else call or channel


def call_name(number: str, machine: str = platform.machine()) -> str:
    """Return the name of a system call by its number, "" for what is no number: the thread runs."""
    return _SYSCALLS.get(machine, {}).get(int(number), f"system call {number}") if number.isdigit() else ""


class ProcFile:
    """One file of /proc, kept open. Reading never raises: a dead process and a refusal read as nothing."""

    __slots__ = ("_fd", "refused")

    def __init__(self, path: str) -> None:
        self.refused = False
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._fd = -1
            self.refused = isinstance(error, PermissionError)

    def read(self) -> bytes:
        """Return what the file says now, b"" if it says nothing any more."""
        if self._fd < 0:
            return b""
        try:
            return os.pread(self._fd, READ_BYTES_MAX, 0)
        except OSError as error:
            self.refused = isinstance(error, PermissionError)
            return b""

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def children(pid: int) -> list[int]:
    """Return the pids that the threads of a process started and that still run."""
    tids = [str(pid)]
    with contextlib.suppress(OSError):
        tids = [entry.name for entry in os.scandir(f"/proc/{pid}/task")]
    found: list[int] = []
    for tid in tids:
        found += [int(child) for child in read_text(f"/proc/{pid}/task/{tid}/children").split()]
    return found


def descendants(pid: int, most: int) -> list[int]:
    """Return the processes that a process started, that those started, and so on: at most so many."""
    found: list[int] = []
    pending = [pid]
    while pending and len(found) < most:
        started = children(pending.pop())
        found += started
        pending += started
    return found[:most]


def read_text(path: str) -> str:
    """Return what a small file of /proc says, "" where it is gone or refused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, READ_BYTES_MAX).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)


def state_of(pid: int) -> ProcessState:
    """Return what the kernel says of a process now."""
    found = parse_stat(read_text(f"/proc/{pid}/stat").encode())
    return found.state if found is not None else ProcessState.GONE


def user_of(pid: int) -> int:
    """Return the user that a process acts for, -1 if it is gone.

    The owner of its directory is not always that: it is root where the process may not be looked into.
    """
    for line in read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])  # real, effective, saved, of the file system
    return -1


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment a process was started with, empty if nobody may read it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read(ENVIRON_BYTES_MAX)
    except OSError:
        return {}
    pairs = (part.partition("=") for part in data.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs if name}
