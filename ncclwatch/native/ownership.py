"""Says whether a build may be loaded. It runs as this user from then on, so nobody else may have had a hand in it.

A directory that others can write into is a place where they have built: a name in it may lead to a file of this user's.
Root is trusted, and so is who may write the directories above.
"""

import os
import stat
from pathlib import Path

from ncclwatch.contract import config

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def trouble(directory: Path, *names: str) -> str:
    """Return why files of a directory must not be loaded, and what to do; "" if they may be, or none is there."""
    try:
        found = directory.lstat()
        above = directory.parent.stat()
    except OSError:
        return ""
    what = ""
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:  # they can put another one in its place
        directory, what = directory.parent, "can be written by everybody"
    elif not stat.S_ISDIR(found.st_mode):
        what = "is no directory"
    elif found.st_uid not in (os.getuid(), 0):
        what = f"belongs to user {found.st_uid}, not to you"
    elif found.st_mode & _OTHERS_WRITE:
        what = f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    what = what or next((f"holds {name}, which {wrong}" for name in names if (wrong := _of_file(directory / name))), "")
    if not what:
        return ""
    return (
        f"{directory} {what}: nothing there is loaded. Remove it, or name another directory in "
        f"{config.ENV_NATIVE_DIR}, and run `ncclwatch build-native`"
    )


def _of_file(path: Path) -> str:
    try:
        found = path.lstat()
    except OSError:
        return ""
    if not stat.S_ISREG(found.st_mode):
        return "is no plain file"
    if found.st_uid not in (os.getuid(), 0):
        return f"belongs to user {found.st_uid}, not to you"
    return "can be written by everybody" if found.st_mode & stat.S_IWOTH else ""
