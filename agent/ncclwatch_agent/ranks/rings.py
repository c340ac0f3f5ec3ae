"""Finds the rings in the runtime directory, and tells which of the files there are none.

Anything may lie there: a file that is no ring of this user's own process is told of once and left alone.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from ncclwatch.contract.errors import NcclwatchError, RingError
from ncclwatch.contract.machine.private_dirs import NotPrivateError, PrivateDir
from ncclwatch.contract.network.sockets import worker_socket
from ncclwatch.contract.ring.reader import Ring
from ncclwatch.contract.ring.rows import RingHeader
from ncclwatch_agent.log import log
from ncclwatch_agent.process.procfs import parse_stat, read_text, user_of
from ncclwatch_agent.ranks import preflight
from ncclwatch_agent.stacks import own_stacks

SUFFIX = ".ring"
RINGS_MAX = 4096
BAD_S = 2.0  # a ring that is being made is no ring for a moment
IDENTITY_S = 3.0  # and has no identity for another
BAD_MAX = 1000


@dataclass(slots=True)
class _Bad:
    since_s: float
    told: bool = False


class RingDirectory:
    """The rings of one runtime directory, found by looking."""

    def __init__(self, top: PrivateDir) -> None:
        self.path = top.path
        self._top = top
        self._bad: dict[str, _Bad] = {}
        self._known: dict[str, int] = {}  # path -> inode: a program that has begun anew by exec() has the same path
        self._told = ""

    def new_rings(self, now_s: float) -> list[Ring]:
        """Open and return the rings that appeared since the last look."""
        found = []
        for job in self._jobs(now_s):
            with job:
                for name, inode in _names(job):
                    known = self._known.get(f"{job.path}/{name}")
                    if known != inode and (known is not None or len(self._known) < RINGS_MAX):
                        found += self._open(job, name, now_s)
        return found

    def _open(self, job: PrivateDir, name: str, now_s: float) -> list[Ring]:
        path = f"{job.path}/{name}"
        place = job.again()
        try:
            ring = Ring(path, place)
        except (RingError, OSError, ValueError) as error:
            place.close()
            self._note_bad(path, str(error), now_s)
            return []
        stranger = _user_of_another(ring.header)
        if stranger is not None:
            ring.close()
            self._note_bad(path, f"{path}: it names process {ring.header.pid}, which belongs to user {stranger}", now_s)
            return []
        if not ring.identity() and now_s - ring.header.created_ns / 1e9 < IDENTITY_S:
            ring.close()  # its writer is not ready; it is opened again at the next look
            return []
        self._bad.pop(path, None)
        self._known[path] = ring.inode
        return [ring]

    def _jobs(self, now_s: float) -> Iterator[PrivateDir]:
        try:
            names = [entry.name for entry in os.scandir(self._top.fd) if entry.is_dir(follow_symlinks=False)]
            self._told = ""
        except OSError as error:
            names = []
            if not self._told:
                self._told = f"cannot look into {self.path}: {error.strerror}"
                log.warning("%s", self._told)
        for name in names:
            try:
                yield self._top.inside(name)
            except NotPrivateError as error:
                self._note_bad(f"{self.path}/{name}", str(error), now_s)
            except OSError:  # it went meanwhile
                continue

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
        self._top.rmdir(job)

    def forget(self, path: str) -> None:
        """Let a file be opened anew if it becomes a ring again."""
        self._known.pop(path, None)


def _names(job: PrivateDir) -> list[tuple[str, int]]:
    with contextlib.suppress(OSError):
        entries = os.scandir(job.fd)
        files = (each for each in entries if each.name.endswith(SUFFIX) and each.is_file(follow_symlinks=False))
        return [(each.name, each.inode()) for each in files]
    return []


def _user_of_another(header: RingHeader) -> int | None:
    """Return whose the process is that a ring names, None if it is this user's own, has ended, or is not here.

    Its stacks are read and its terminal is written to: a ring must not be able to choose them from among all processes.
    """
    stat = parse_stat(read_text(f"/proc/{header.pid}/stat").encode())
    if stat is None or stat.start_ticks != header.start_ticks:
        return None
    user = user_of(header.pid)
    return None if user in (os.geteuid(), -1) else user
