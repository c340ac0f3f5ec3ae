"""Lists the files that a process writes and how far it has come, from outside, so also while it cannot be asked.

/proc/<pid>/fdinfo and the links in /proc/<pid>/fd are answered from memory: they never wait for a file system.
"""

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from ncclwatch_agent.process.procfs import read_text

FDS_MAX = 1024  # of one process, looked through
_WRITES = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """A file that a process has open for writing."""

    fd: int
    path: str  # as the kernel has it
    position: int  # bytes
    appends: bool


def parse_fdinfo(text: str) -> tuple[int, int] | None:
    """Return (position, flags) of a descriptor, None if it tells none."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        return int(fields["pos"]), int(fields["flags"], 8)
    except (KeyError, ValueError):
        return None


def written_files(pid: int) -> list[OpenFile]:
    """Return the files with a path that a process has open for writing; [] if nobody may look."""
    found = []
    with contextlib.suppress(OSError):
        for link in itertools.islice(Path(f"/proc/{pid}/fd").iterdir(), FDS_MAX):
            with contextlib.suppress(OSError, ValueError):
                path = str(link.readlink())
                if path.startswith("/") and not path.endswith(" (deleted)"):
                    file = open_file(pid, int(link.name), path)
                    found += [file] if file is not None else []
    return found


def open_file(pid: int, fd: int, path: str) -> OpenFile | None:
    """Return how far one descriptor has come, None if it is closed or not for writing."""
    told = parse_fdinfo(read_text(f"/proc/{pid}/fdinfo/{fd}"))
    if told is None or not told[1] & _WRITES:
        return None
    return OpenFile(fd=fd, path=path, position=told[0], appends=bool(told[1] & os.O_APPEND))
