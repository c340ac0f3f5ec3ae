"""Writes a report to the disk, whole or not at all, and readable by its owner alone: it holds paths and stacks.

It is written to a new file beside its place and renamed over it. So a link of that name is replaced, and what it points
to is not touched. A device or a pipe that the user named, such as /dev/stdout, is written to.
"""

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from ncclwatch.contract.errors import ConfigError
from ncclwatch.contract.machine.private_dirs import closed_on_error

_STREAMS = ("/dev", "/proc")  # where links lead to what is open already
_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """A report that can be written: this was tried."""

    path: Path
    draft: Path | None  # becomes the report by a rename; None: the path is a pipe or a device
    fd: int = -1  # of the draft

    def write(self, data: bytes) -> None:
        """Write the report. Raises OSError; then nothing of it is left."""
        if self.draft is None:
            # Standard output may be a file that others write to as well: behind what is there.
            _write(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), data, keep=False)
            return
        try:
            _write(self.fd, data, keep=True)
            self.draft.replace(self.path)
        except BaseException:
            self.discard()
            raise

    def put(self, data: bytes, what: str, option: str) -> None:
        """Write it, or nothing. Raises `ConfigError`, which says `what` it is and which option names another file."""
        try:
            self.write(data)
        except OSError as error:
            raise ConfigError(
                f"cannot write {what} to {self.path} ({error.strerror}); name another file with {option}"
            ) from error

    def discard(self) -> None:
        """Remove what was only prepared."""
        if self.draft is not None:
            self.draft.unlink(missing_ok=True)


def prepare(path: Path, what: str = "the report", option: str = "--report") -> ReportFile:
    """Make sure that a file can be written there later, which an option has named. Raises `ConfigError`."""
    if path.is_dir():
        raise ConfigError(f"cannot write {what} to {path}: it is a directory; name a file with {option}")
    if is_stream(path):
        return ReportFile(path=path, draft=None)
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot write {what} to {path} ({error.strerror}); name a file in a directory that exists and "
            f"that you can write to with {option}"
        ) from error
    return ReportFile(path=path, draft=draft, fd=fd)


def is_stream(path: Path) -> bool:
    """Whether a path is a pipe or a device that the user means. A link there counts if root or this user made it."""
    try:
        named, reached = path.lstat(), path.stat()
    except OSError:
        return False
    above = str(Path(os.path.abspath(path)).parent)  # noqa: PTH100  (it must not follow links)
    if above.startswith(_STREAMS) and not above.startswith(_MEMORY):
        return True
    mine = not stat.S_ISLNK(named.st_mode) or named.st_uid in (0, os.geteuid())
    return mine and not stat.S_ISREG(reached.st_mode)


def _write(fd: int, data: bytes, *, keep: bool) -> None:
    with closed_on_error(fd):
        file = os.fdopen(fd, "wb")
    with file:
        file.write(data)
        file.flush()
        if keep:
            os.fsync(fd)
