"""Finds the rings in the runtime directory, and tells which of the files there are none.

Anything may lie there: a file that is no ring of this user's own process is told of once and left alone.
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ncclwatch.contract import config
from ncclwatch.contract.errors import NcclwatchError, RingError
from ncclwatch.contract.machine.private_dirs import NotPrivateError, PrivateDir
from ncclwatch.contract.network.sockets import worker_socket
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.rows import RingHeader
from ncclwatch_agent.log import log
from ncclwatch_agent.process.procfs import parse_stat, read_text, user_of
from ncclwatch_agent.ranks import preflight
from ncclwatch_agent.stacks import own_stacks
from ncclwatch_agent.uplink.invitation import exchanged_files

SUFFIX = ".ring"
RINGS_MAX = 4096
BAD_S = 2.0  # a ring that is being made is no ring for a moment
IDENTITY_S = 3.0  # and has no identity for another
BAD_MAX = 1000
STEADY_NS = 500_000_000  # far above the 1 to 10 ms by which a kernel stamps
_Stamp = tuple[int, int, int]  # inode, times of change of what is in it and of itself


@dataclass(slots=True)
class _Bad:
    since_s: float
    told: bool = False


class RingDirectory:
    """The rings of one runtime directory, found by looking."""

    def __init__(self, top: PrivateDir, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self.path = top.path
        self._top = top
        self._wall_ns = wall_ns  # the clock by which files are stamped
        self._bad: dict[str, _Bad] = {}
        self._known: dict[str, int] = {}  # path -> inode: a program that has begun anew by exec() has the same path
        self._jobs: tuple[str, ...] = ()
        self._listed: _Stamp | None = None  # the directory, as it was when its jobs were listed
        self._settled: dict[str, _Stamp] = {}  # directories of jobs, as they were when all rings there were known
        self._told = ""

    def new_rings(self, now_s: float) -> list[Ring]:
        """Open and return the rings that appeared since the last look. A directory that is as before is not read."""
        found: list[Ring] = []
        try:
            self._add_new(found, now_s)
        except BaseException:  # nobody gets them now: the next look finds them again
            for ring in found:
                self.forget(ring.path)
                ring.close()
            raise
        return found

    def _add_new(self, found: list[Ring], now_s: float) -> None:
        for name in self._list_jobs():
            stamp = self._stamp(self._top.stat(name))
            if stamp is not None and self._settled.get(name) == stamp:
                continue
            self._settled.pop(name, None)
            job = self._enter(name, now_s)
            if job is None:
                continue
            with job:
                rings = _names(job)
                for each in rings or ():
                    found += self._look_at(job, *each, now_s)
                known = rings is not None and all(
                    self._known.get(f"{job.path}/{ring}") == inode for ring, inode in rings
                )  # None: it could not be read
            if known and stamp is not None:
                self._settled[name] = stamp

    def _look_at(self, job: PrivateDir, name: str, inode: int, now_s: float) -> list[Ring]:
        known = self._known.get(f"{job.path}/{name}")
        if known == inode or (known is None and len(self._known) >= RINGS_MAX):
            return []
        return self._open(job, name, now_s)

    def _open(self, job: PrivateDir, name: str, now_s: float) -> list[Ring]:
        path = f"{job.path}/{name}"
        try:
            ring = _opened(path, job)
        except (RingError, OSError, ValueError) as error:
            self._note_bad(path, str(error), now_s)
            return []
        try:
            return self._accepted(ring, path, now_s)
        except BaseException as error:
            ring.close()
            if not isinstance(error, OSError):
                raise
            self._note_bad(path, str(error), now_s)
            return []

    def _accepted(self, ring: Ring, path: str, now_s: float) -> list[Ring]:
        stranger = _user_of_another(ring.header)
        if stranger is not None:
            ring.close()
            self._note_bad(path, f"{path}: it names process {ring.header.pid}, which belongs to user {stranger}", now_s)
            return []
        if not ring.identity() and now_s - ring.header.created_ns / 1e9 < IDENTITY_S:
            ring.close()  # its writer is not ready; it is opened again at the next look
            return []
        self._known[path] = ring.inode
        self._bad.pop(path, None)
        return [ring]

    def _list_jobs(self) -> tuple[str, ...]:
        try:
            stamp = self._stamp(os.fstat(self._top.fd))
            if stamp is None or stamp != self._listed:
                entries = os.scandir(self._top.fd)
                self._jobs = tuple(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
                self._listed = stamp
                self._settled = {name: known for name, known in self._settled.items() if name in self._jobs}
            self._told = ""
        except OSError as error:
            self._jobs, self._listed = (), None
            if not self._told:
                self._told = f"cannot look into {self.path}: {error.strerror}"
                log.warning("%s", self._told)
        return self._jobs

    def _enter(self, name: str, now_s: float) -> PrivateDir | None:
        try:
            return self._top.inside(name)
        except NotPrivateError as error:
            self._note_bad(f"{self.path}/{name}", str(error), now_s)
        except OSError:  # it went meanwhile
            pass
        return None

    def _note_bad(self, path: str, sentence: str, now_s: float) -> None:
        bad = self._bad.get(path)
        if bad is None:
            if len(self._bad) < BAD_MAX:
                self._bad[path] = _Bad(now_s)
        elif not bad.told and now_s - bad.since_s >= BAD_S:
            bad.told = True
            log.warning("%s. It is left alone", sentence)

    def remove(self, path: str, header: RingHeader) -> None:
        """Delete the ring of a process that has ended with the socket it may have left, and an empty directory."""
        self._known.pop(path, None)
        self._top.unlink(worker_socket(self.path, header.pid, header.start_ticks).rpartition("/")[2])
        job, name = path.split("/")[-2:]
        with contextlib.suppress(NcclwatchError, OSError), self._top.inside(job) as place:
            place.unlink(name)
            own_stacks.forget(place, name)
            preflight.forget(place, name)
            for ending in (*exchanged_files(), config.NOTICE_SUFFIX, f"{config.NOTICE_SUFFIX}.new"):
                place.unlink(name + ending)
        self._top.rmdir(job)

    def forget(self, path: str) -> None:
        """Let a file be opened anew if it becomes a ring again."""
        self._known.pop(path, None)
        self._settled.clear()

    def _stamp(self, found: os.stat_result | None) -> _Stamp | None:
        """Return which directory this is in which state; None for one that was changed just now.

        A file system stamps by the tick of the kernel: what is changed twice within one looks as if it were once.
        """
        if found is None or self._wall_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < STEADY_NS:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _opened(path: str, job: PrivateDir) -> Ring:
    place = job.again()
    try:
        return Ring(path, place)
    except BaseException:
        place.close()
        raise


def _names(job: PrivateDir) -> list[tuple[str, int]] | None:
    """Return names and inodes of the rings in a directory, None if it cannot be read now."""
    with contextlib.suppress(OSError):
        entries = os.scandir(job.fd)
        files = (each for each in entries if each.name.endswith(SUFFIX) and each.is_file(follow_symlinks=False))
        return [(each.name, each.inode()) for each in files]
    return None


def _user_of_another(header: RingHeader) -> int | None:
    """Return whose the process is that a ring names, None if it is this user's own, has ended, or is not here.

    Its stacks are read and its terminal is written to: a ring must not be able to choose them from among all processes.
    """
    stat = parse_stat(read_text(f"/proc/{header.pid}/stat").encode())
    if stat is None or stat.start_ticks != header.start_ticks:
        return None
    user = user_of(header.pid)
    return None if user in (os.geteuid(), -1) else user
