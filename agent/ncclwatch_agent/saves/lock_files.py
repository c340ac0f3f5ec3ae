"""Says whose a lock file is that a rank fails to make since it is there: a number in it may be that of its process.

Such a file outlives the process that made it. Whether a process on another node uses it nobody can see here, and a file
system that does not answer must not hold up the agent: only files on file systems of this machine are looked at.
"""

import os
import stat
import time
from pathlib import Path

from ncclwatch.contract.machine.boot import pid_namespace
from ncclwatch.contract.model.rank import LockFile
from ncclwatch_agent.process.procfs import parse_stat, read_text
from ncclwatch_agent.saves.file_places import NETWORKED, Mount, mount_of, parse_mounts

PID_BYTES_MAX = 32
PROCESSES_MAX = 8192  # of the machine; of more nobody says which of them counts itself by a number
_FIRST_NAMESPACE = "4026531836"  # of processes (PROC_PID_INIT_INO in linux/proc_ns.h): who is in it sees them all
_EARLIER_S = 1.0  # a process that was started later than the file was written, by more than this, has not written it


def lock_file(pid: int, path: str) -> LockFile | None:
    """Return what is known of a file that a process polls for, None if it is not there."""
    mounts = parse_mounts(_mounts(pid))
    try:
        whole = os.path.join(str(Path(f"/proc/{pid}/cwd").readlink()), path)
        if not _is_local(whole, mounts):
            return LockFile(path=path)
        place = f"/proc/{pid}/root{whole}"
        found = os.lstat(place)
        text = _beginning(place) if stat.S_ISREG(found.st_mode) else b""
    except OSError:
        return None
    writer = int(text) if text.isdigit() and len(text) <= 9 else 0
    ended = writer > 0 and _has_ended(writer, found.st_mtime, os.path.realpath(place), mounts)
    return LockFile(path=path, writer=writer, ended=ended)


def _beginning(place: str) -> bytes:
    """Return what a plain file begins with. Neither a pipe nor a link that took its place since holds us up."""
    with open(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
        return file.read(PID_BYTES_MAX).strip()


def _is_local(path: str, mounts: tuple[Mount, ...]) -> bool:
    filesystem = mount_of(path, mounts).filesystem
    return bool(filesystem) and filesystem not in NETWORKED and not filesystem.startswith("fuse")


def _mounts(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/mountinfo").read_text(errors="replace")
    except OSError:
        return ""


def _has_ended(writer: int, since: float, path: str, mounts: tuple[Mount, ...]) -> bool:
    """Say whether the process that wrote its number into a file is gone, for certain.

    One in another container counts otherwise. Who cannot see it knows only that nobody else writes to the root of its
    own container.
    """
    if not _is_local(path, mounts) or _lives(writer, since):
        return False
    if pid_namespace() != _FIRST_NAMESPACE:
        mount = mount_of(path, mounts)
        return (mount.point, mount.filesystem) == ("/", "overlay")
    pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    if 1 not in pids or len(pids) > PROCESSES_MAX:  # those of other users are hidden
        return False
    return not any(counts_as(read_text(f"/proc/{pid}/status"), writer) and _lives(pid, since) for pid in pids)


def counts_as(status: str, number: int) -> bool:
    """Say whether a process has a number in any of its namespaces, by its /proc/PID/status."""
    numbers = next((line for line in status.splitlines() if line.startswith("NSpid:")), "").split()[1:]
    return str(number) in numbers


def _lives(pid: int, since: float) -> bool:
    """Say whether the process with this number is one that was there at a moment."""
    process = parse_stat(read_text(f"/proc/{pid}/stat").encode())
    if process is None:
        return False
    uptime_s = float((read_text("/proc/uptime") or "0").split()[0])
    age_s = uptime_s - process.start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s <= since + _EARLIER_S
