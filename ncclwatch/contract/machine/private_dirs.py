"""Opens directories that nobody but this user can reach, and the files in them, without ever following a link.

Rings, the agent's lock, card and log, sockets and the questions between agent and rank lie in /dev/shm, where every
user of the machine may make a directory first. So a directory counts only if it is a real one, belongs to this user,
and lets nobody else in; from then on it is held open, and what is done in it is done in that one, whatever becomes of
the names above it. A file counts only if it is a plain one of this user with a single name.

Root is trusted, and so is who may write the directories above one that a user has named: they can take it away.
"""

import contextlib
import os
import stat
from collections.abc import Iterator

from ncclwatch.contract import config
from ncclwatch.contract.errors import NcclwatchError

MODE = 0o700
MOUNTS_BYTES_MAX = 4 << 20
IN_MEMORY = ("tmpfs", "ramfs")  # a store into a mapped page of these never waits for a disk or a network
_ANYBODY_ELSE = 0o077
_NEVER_ELSEWHERE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotPrivateError(NcclwatchError):
    """A directory that this user cannot rely on. The message says whose it is and what to do."""


class NotOwnError(OSError):
    """A file that is none of this user's own plain ones."""


class PrivateDir:
    """A directory held open. Names are single components. Use as a context manager, or close it."""

    def __init__(self, path: str, fd: int) -> None:
        """Hold this descriptor; where that fails it is closed."""
        self.path = path
        self.fd = fd
        with closed_on_error(fd):
            found = os.fstat(fd)
        self._identity = (found.st_dev, found.st_ino)

    def __enter__(self) -> "PrivateDir":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back, if it is still ours, see `_checked`."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._checked(""))
            self.fd = -1

    def again(self) -> "PrivateDir":
        """Return the same directory, held open a second time."""
        return PrivateDir(self.path, os.dup(self._checked("")))

    def _checked(self, name: str) -> int:
        """Return the descriptor. A program that closes all of its descriptors may have given ours to another file."""
        found = os.fstat(self.fd)
        if (found.st_dev, found.st_ino) != self._identity or "/" in name:
            raise NotOwnError(9, "the descriptor of this directory was closed, or the name leads out of it", name)
        return self.fd

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a plain file of this user. Raises `NotOwnError` for any other, OSError as open() does."""
        fd = os.open(name, flags | _NEVER_ELSEWHERE, mode, dir_fd=self._checked(name))
        with closed_on_error(fd):
            try:
                trouble = not_own(os.fstat(fd))
            except BaseException:
                if flags & os.O_EXCL:  # made just now
                    self.unlink(name)
                raise
            if trouble:
                raise NotOwnError(1, trouble, f"{self.path}/{name}")
        return fd

    def inside(self, name: str, *, make: bool = False) -> "PrivateDir":
        """Open a directory in this one. Raises `NotPrivateError` or OSError."""
        self._checked(name)
        return _open(f"{self.path}/{name}", name, self.fd, make=make)

    def read(self, name: str, bytes_max: int) -> bytes:
        """Return what a file says, b"" where there is none."""
        with contextlib.suppress(OSError):
            fd = self.open(name, os.O_RDONLY)
            with closed_on_error(fd):
                file = os.fdopen(fd, "rb")
            with file:
                return file.read(bytes_max)
        return b""

    def write(self, name: str, data: bytes) -> None:
        """Put a file there whole, or not at all. Raises OSError."""
        unfinished = f"{name}.new"
        self.unlink(unfinished)
        fd = self.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with closed_on_error(fd):
                file = os.fdopen(fd, "wb")
            with file:
                file.write(data)
            self.rename(unfinished, name)
        except BaseException:
            self.unlink(unfinished)
            raise

    def rename(self, name: str, other: str) -> None:
        """Give a file another name here. Raises OSError."""
        os.rename(name, other, src_dir_fd=self._checked(name), dst_dir_fd=self._checked(other))

    def stat(self, name: str) -> "os.stat_result | None":
        """Return what is there by this name, None for nothing."""
        try:
            return os.stat(name, dir_fd=self._checked(name), follow_symlinks=False)
        except OSError:
            return None

    def unlink(self, name: str) -> None:
        """Remove a name, if it is there and may be removed."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._checked(name))

    def rmdir(self, name: str) -> None:
        """Remove a directory, if it is empty and may be removed."""
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=self._checked(name))

    def way_to(self, name: str) -> str:
        """Return a short path to a name in this very directory, good while it is held open: sockets need one."""
        return f"/proc/self/fd/{self._checked(name)}/{name}"


def open_private(path: str, *, make: bool = False) -> PrivateDir:
    """Open a directory of this user's own, or make it. Raises `NotPrivateError`, or OSError where it cannot be."""
    path = os.path.normpath(path)
    if make:
        with contextlib.suppress(FileExistsError):  # a file in the way is told of below
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return _open(path, path, None, make=make)


def _open(path: str, name: str, within: int | None, *, make: bool) -> PrivateDir:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, MODE, dir_fd=within)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=within)
    except OSError:
        whose = _owner(name, within)
        if whose is None:
            raise
        raise NotPrivateError(f"{path} {whose}. {ADVICE}") from None
    with closed_on_error(fd):
        found = os.fstat(fd)
        if found.st_uid == os.geteuid() and os.path.basename(path) == config.runtime_name():
            # Ours by its name. Earlier versions left it open to readers; what somebody put into it is looked at singly.
            os.fchmod(fd, MODE)
            found = os.fstat(fd)
        trouble = not_private(found)
        if trouble:
            raise NotPrivateError(f"{path} {trouble}")
    return PrivateDir(path, fd)


@contextlib.contextmanager
def closed_on_error(fd: int) -> Iterator[None]:
    """Close a descriptor if what is done with it fails."""
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


def _owner(name: str, within: int | None) -> str | None:
    """Return whose thing that cannot be opened is, None where nothing is known against it."""
    try:
        found = os.stat(name, dir_fd=within, follow_symlinks=False)
    except OSError:
        return None
    if stat.S_ISLNK(found.st_mode):
        return f"is a link, made by user {found.st_uid}; a real directory is needed"
    return None if found.st_uid == os.geteuid() else _of_another(found)


ADVICE = (
    f"Remove it, or name another place in {config.ENV_RUNTIME_DIR}, the same for all processes of this user on the node"
)


def _of_another(found: os.stat_result) -> str:
    return f"belongs to user {found.st_uid}, and this process runs as user {os.geteuid()}"


def not_private(found: os.stat_result) -> str:
    """Return what is wrong with a directory, as the end of a sentence with what to do; "" for nothing."""
    if found.st_uid != os.geteuid():
        return f"{_of_another(found)}. {ADVICE}"
    if found.st_mode & _ANYBODY_ELSE:
        mode = stat.S_IMODE(found.st_mode)
        return f"lets other users in (mode {mode:04o}). If it is yours alone, close it: chmod 700. Or else: {ADVICE}"
    return ""


def not_own(found: os.stat_result) -> str:
    """Return what is wrong with a file, "" if it is a plain one of this user with one name."""
    if not stat.S_ISREG(found.st_mode):
        return "is no plain file"
    if found.st_uid != os.geteuid():
        return _of_another(found)
    return "has several names, or none" if found.st_nlink != 1 else ""


def filesystem_of(fd: int) -> str:
    """Return the type of the file system that an open file lies on, "" where the kernel does not tell."""
    device = os.fstat(fd).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read(MOUNTS_BYTES_MAX).decode(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 2 and fields[2] == wanted and after:
            return after.split()[0]
    return ""


def require_memory(place: PrivateDir) -> None:
    """Raise `NotPrivateError` unless a directory lies in memory.

    A ring is mapped, and a store into a page of a disk or of a network file system may wait for it, or end the
    process: training would stand still for its watchdog.
    """
    found = filesystem_of(place.fd)
    if found not in IN_MEMORY:
        raise NotPrivateError(
            f"{place.path} lies on {found or 'a file system of an unknown kind'}, where writing can make training "
            f"wait. Rings need memory (tmpfs): name a directory below /dev/shm in {config.ENV_RUNTIME_DIR}, or unset it"
        )
