"""Says where this user's own files lie, also for one without a home: a container's uid that no password file knows."""

import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path

from ncclwatch.contract.errors import ConfigError

_LASTING = "/var/tmp"  # it outlives a reboot, and is no memory as /dev/shm is


def home(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the user's home directory, None if neither HOME nor the password file names one."""
    found = environ.get("HOME", "")
    if not found:
        try:
            found = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(found) if Path(found).is_absolute() else None


def expanded(path: str) -> Path:
    """Return a path whose ~ is replaced. Raises `ConfigError` where nobody knows by what."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"the ~ in {path} stands for no directory: no such user has a home; write it out") from None


def state_dir(environ: Mapping[str, str] = os.environ) -> tuple[Path, bool]:
    """Return where a server keeps its files, and whether that is only a makeshift.

    A home that is no directory, or in which this user may make nothing, is none: containers set HOME=/ for a uid that
    they do not know. What is there already is taken as it is, even if it cannot be written today.
    """
    named = environ.get("XDG_STATE_HOME", "")
    if named:
        return Path(named).absolute() / "ncclwatch", False
    own = home(environ)
    if own is not None:
        found = own / ".local" / "state" / "ncclwatch"
        if _can_be(found):
            return found, False
    return Path(_LASTING) / f"ncclwatch-{os.getuid()}", True


def _can_be(path: Path) -> bool:
    """Whether a directory is there, or could be made."""
    if path.exists():
        return True
    nearest = next(each for each in path.parents if each.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def make_own(path: Path) -> None:
    """Make a directory for this user alone where everybody may make one. Raises `ConfigError`."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"cannot make {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"{path} is not a directory of yours alone (0700): somebody else may have made it")
