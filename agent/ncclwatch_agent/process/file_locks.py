"""Finds who holds the file lock that a process waits for. The kernel tells everybody, in /proc/locks."""

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

LOCKS_BYTES_MAX = 1 << 18
POLL_S_MAX = 3.0  # between two tries; who has not tried for longer does something else
FDS_MAX = 512  # of one process, looked through for the name of its lock


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWait:
    """A wait for a file lock (flock or fcntl)."""

    holder: int  # pid, as this machine counts
    inode: int
    polled_s: float = 0.0  # for how long it has tried again and again; 0: it waits in the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """A lock that a process has tried to take and did not get, by its own record."""

    inode: int
    for_s: float  # since the first try
    tried_s: float  # since the last one


def may_be_in_lock(place: str) -> bool:
    """Say whether a thread at a place in the kernel may wait for a file lock; "": nobody may look.

    /proc/locks tells of a process, and any thread of it may be the one that waits.
    """
    return not place or any(name in place for name in ("flock", "fcntl", "locks_lock"))


def parse_locks(text: str, pid: int) -> LockWait | None:
    """Return what a process waits for by /proc/locks, None if for nothing.

    A waiter stands below its holder, under the same number: "2: FLOCK ADVISORY WRITE 10 fe:00:7 0 EOF" and
    "2: -> FLOCK ADVISORY WRITE 11 fe:00:7 0 EOF".
    """
    holder = 0
    for line in text.splitlines():
        fields = line.split()
        waits = len(fields) > 1 and fields[1] == "->"
        try:
            owner, place = int(fields[5 if waits else 4]), fields[6 if waits else 5]
            if waits and owner == pid and holder > 0:
                return LockWait(holder=holder, inode=int(place.rsplit(":", 1)[-1]))
        except (IndexError, ValueError):
            continue
        holder = holder if waits else owner
    return None


def parse_holder(text: str, inode: int) -> int:
    """Return who holds a lock on a file by /proc/locks: its pid, 0 if nobody does or it is unknown."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[1] not in ("FLOCK", "POSIX", "OFDLCK"):
            continue
        if fields[5].endswith(f":{inode}") and fields[4].isdigit():
            return int(fields[4])
    return 0


def lock_wait(pid: int) -> LockWait | None:
    """Return which lock a process waits for now, None if for none or nobody may look."""
    return parse_locks(_locks(), pid)


def polled_lock(polled: Polled | None) -> LockWait | None:
    """Return the lock that a process polls for, None if it has stopped that or nobody is seen to hold it."""
    if polled is None or polled.tried_s > POLL_S_MAX:
        return None
    holder = parse_holder(_locks(), polled.inode)
    return LockWait(holder=holder, inode=polled.inode, polled_s=polled.for_s) if holder else None


def _locks() -> str:
    """Return what the kernel tells of all file locks, "" if nobody may look."""
    try:
        fd = os.open("/proc/locks", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, LOCKS_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def lock_path(pid: int, inode: int) -> str:
    """Return the path of an open file of a process by its inode, "" if it cannot be found."""
    with contextlib.suppress(OSError):
        for link in itertools.islice(Path(f"/proc/{pid}/fd").iterdir(), FDS_MAX):
            with contextlib.suppress(OSError):
                if link.stat().st_ino == inode:
                    return str(link.readlink())
    return ""
