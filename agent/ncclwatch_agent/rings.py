"""Which rings lie in the runtime directory, and which of the files there are none?

Anything may lie there: a file that is no ring is told of once and left alone.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract.errors import RingError
from ncclwatch.contract.ring import RING_BYTES, Ring, RingHeader
from ncclwatch.contract.sockets import worker_socket
from ncclwatch_agent import own_stacks, preflight
from ncclwatch_agent.log import log

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

    def __init__(self, path: str) -> None:
        self.path = path
        self._bad: dict[str, _Bad] = {}
        self._known: set[str] = set()
        self._told = ""

    def new_rings(self, now_s: float) -> list[Ring]:
        """Open and return the rings that appeared since the last look."""
        found = []
        for path in self._paths():
            if path in self._known or len(self._known) >= RINGS_MAX:
                continue
            try:
                ring = Ring(path)
            except (RingError, OSError, ValueError) as error:
                self._note_bad(path, str(error), now_s)
                continue
            if not ring.identity() and now_s - ring.header.created_ns / 1e9 < IDENTITY_S:
                ring.close()  # its writer is not ready; it is opened again at the next look
                continue
            self._bad.pop(path, None)
            self._known.add(path)
            found.append(ring)
        return found

    def _paths(self) -> Iterator[str]:
        try:
            jobs = [entry.path for entry in os.scandir(self.path) if entry.is_dir(follow_symlinks=False)]
            self._told = ""
        except OSError as error:
            jobs = []
            if not self._told:
                self._told = f"cannot look into {self.path}: {error.strerror}"
                log.warning("%s", self._told)
        for job in jobs:
            with contextlib.suppress(OSError):
                for entry in os.scandir(job):
                    if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                        yield entry.path

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
        self._known.discard(path)
        with contextlib.suppress(OSError):
            Path(worker_socket(self.path, header.pid, header.start_ticks)).unlink()
        with contextlib.suppress(OSError):
            Path(path).unlink()
        own_stacks.forget(path)
        preflight.forget(path)
        with contextlib.suppress(OSError):
            Path(path).parent.rmdir()

    def forget(self, path: str) -> None:
        """Let a file be opened anew if it becomes a ring again."""
        self._known.discard(path)


def is_whole(path: str) -> bool:
    """Whether a file that was a ring still has its size: reading beyond the end of a mapping would kill us.

    A file that was unlinked is whole: its pages stay with the mapping.
    """
    try:
        return os.stat(path).st_size >= RING_BYTES  # noqa: PTH116 - each second and rank; Path takes five times as long
    except FileNotFoundError:
        return True
    except OSError:
        return False
