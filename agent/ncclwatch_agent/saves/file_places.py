"""Says what a path leads to: which file, on which file system, how much room, and whether it may be written.

A path may lie on a mount that is dead, and asking about it may then never return: so one thread of our own asks for
the whole agent, nobody waits for it, and that it does not come back is an answer, too.
"""

import functools
import os
import queue
import stat
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract.machine.liveness import LoopLife, keep_thread
from ncclwatch_agent.log import log

PATHS_MAX = 64  # remembered
LOOK_STILL_S = 30.0  # a mount that has not answered for so long is reported
MOUNTS_BYTES_MAX = 1 << 20
# File systems on which the same file is seen from several nodes, under a source that names it.
NETWORKED = frozenset(
    "nfs nfs4 cifs smb3 lustre gpfs beegfs ceph glusterfs fuse.glusterfs orangefs panfs wekafs".split()
)
# Here one device number stands for several trees, each with its own inode numbers.
_MANY_TREES = frozenset(("overlay", "btrfs", "bcachefs", "aufs"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    point: str
    filesystem: str  # type
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlace:
    """What a path led to when somebody looked."""

    path: str  # without symbolic links
    identity: str = ""  # of a plain file, whatever path leads to it and from whatever node; "": it is none
    filesystem: str = ""  # type
    source: str = ""  # what is mounted
    device: int = 0
    inode: int = 0  # 0: the file does not exist
    size_bytes: int = -1  # of the file; -1: there is none
    held_bytes: int = 0  # of the room, by the file: who writes it anew gets them back
    free_bytes: int = -1  # for this user; -1: unknown
    refused: str = ""  # why nothing can be written there
    looked_ns: int = 0  # when this look began


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Return the mounts of a mountinfo file. Spaces in paths are written as \\040."""
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if separator and len(fields) > 4 and len(rest) > 1:
            point = fields[4].encode().decode("unicode_escape") if "\\" in fields[4] else fields[4]
            found.append(Mount(point=point, filesystem=rest[0], source=rest[1]))
    return tuple(found)


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount:
    """Return the mount on which a path lies: of those at the longest point, the newest."""
    best = Mount(point="", filesystem="", source="")
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best


def look(path: str) -> FilePlace:
    """Return what a path leads to now. May block for ever on a dead mount."""
    looked_ns = time.monotonic_ns()
    real = os.path.realpath(path)
    directory = Path(real).parent
    try:
        within = directory.stat()
    except OSError as error:
        return FilePlace(path=real, refused=f"{directory}: {error.strerror}", looked_ns=looked_ns)
    with open("/proc/self/mountinfo", "rb") as file:
        mount = mount_of(real, parse_mounts(file.read(MOUNTS_BYTES_MAX).decode(errors="replace")))
    try:
        found = Path(real).stat()
    except OSError:
        found = None
    plain = found is None or stat.S_ISREG(found.st_mode)
    room = os.statvfs(directory)
    free_bytes = _free_blocks(room) * room.f_frsize
    return FilePlace(
        path=real,
        identity=_identity(real, within, mount) if plain else "",
        filesystem=mount.filesystem,
        source=mount.source,
        device=within.st_dev,
        inode=found.st_ino if found is not None else 0,
        size_bytes=found.st_size if found is not None and plain else -1,
        held_bytes=found.st_blocks * 512 if found is not None and plain else 0,
        free_bytes=free_bytes if room.f_blocks else -1,
        refused=_refusal(real, found, room, _quota_of_project(directory, mount, room)) if plain else "",
        looked_ns=looked_ns,
    )


def _identity(real: str, directory: os.stat_result, mount: Mount) -> str:
    """Return the directory's device and inode with the name: the same by every path to it, and before the file is.

    Device numbers are a node's own. Another node that has mounted the same source has other ones, but the same inodes.
    """
    if mount.filesystem in NETWORKED:
        return f"{mount.source}:{directory.st_ino}{real}"
    tree = real if mount.filesystem in _MANY_TREES else Path(real).name
    return f"{boot_id()}:{directory.st_dev}:{directory.st_ino}/{tree}"


@functools.cache
def boot_id() -> str:
    """Return what tells this running kernel from all others: names of hosts are not always their own."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _free_blocks(room: os.statvfs_result) -> int:
    """Return the blocks that this user may still take: some are kept for root."""
    return room.f_bavail if os.getuid() else room.f_bfree


def _quota_of_project(directory: Path, mount: Mount, room: os.statvfs_result) -> bool:
    """Say whether a directory has less room than its own file system: a quota of its project is shown in that way.

    ext4 and xfs show it so to everybody, and so do some filers. The quota of a user or of a group is not shown here.
    """
    if not room.f_blocks or not mount.point or str(directory) == mount.point:
        return False
    top = Path(mount.point)
    whole = os.statvfs(top)
    same = top.stat().st_dev == directory.stat().st_dev
    return same and room.f_blocks * room.f_frsize < whole.f_blocks * whole.f_frsize


def _refusal(real: str, found: os.stat_result | None, room: os.statvfs_result, quota: bool) -> str:
    directory = Path(real).parent
    if room.f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only"
    if found is not None and not os.access(real, os.W_OK):
        return "this user may not write that file"
    if found is None and not os.access(directory, os.W_OK | os.X_OK):
        return f"this user may not write in {directory}"
    if room.f_blocks and not _free_blocks(room):
        return f"the quota of {directory} is used up" if quota else "its file system is full"
    if found is None and room.f_files and not room.f_favail:
        return "its file system has no inode left"
    return ""


class FilePlaces:
    """Looks at paths beside everything else, and remembers what the newest look found."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, FilePlace] = OrderedDict()
        self._asked: dict[str, int] = {}  # path -> when, of looks that have not come back
        self._paths: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.life = LoopLife("file places", age_s_max=LOOK_STILL_S)  # it waits for a file system
        self._thread: threading.Thread | None = None

    def ask(self, path: str) -> None:
        """Have somebody look, unless that is under way."""
        if path in self._asked or len(self._asked) >= PATHS_MAX:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="file places", daemon=True)
            self._thread.start()
        self._asked[path] = time.monotonic_ns()
        self._paths.put(path)

    def get(self, path: str) -> FilePlace | None:
        """Return what the newest look found, None before the first one has come back."""
        return self._known.get(path)

    def unanswered_s(self, path: str, now_ns: int) -> float:
        """Return for how long a look has not come back, in seconds; 0: none is under way."""
        asked_ns = self._asked.get(path, 0)
        return max(0.0, (now_ns - asked_ns) / 1e9) if asked_ns else 0.0

    def _live(self) -> None:
        keep_thread(self.life, log, self._work, threading.Event())

    def _work(self) -> None:
        while True:
            self.life.rests()
            path = self._paths.get()
            self.life.went_round()
            try:
                found = look(path)
            except Exception as error:  # noqa: BLE001  a name that is too long, or a file system that nobody foresaw
                found = FilePlace(path=path, refused=str(error))
            except BaseException:  # the thread begins anew; a look that nobody makes must not pass for a dead mount
                self._asked.pop(path, None)
                raise
            self._known[path] = found
            self._known.move_to_end(path)
            while len(self._known) > PATHS_MAX:
                self._known.popitem(last=False)
            self._asked.pop(path, None)


PLACES = FilePlaces()  # one for the agent: a second thread would only hang beside the first
