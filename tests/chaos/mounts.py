"""File systems for single cells, which this process and its children alone see, and which end with them."""

import ctypes
import os
import subprocess

_CLONE_NEWNS = 0x00020000


def own_mounts() -> bool:
    """Let what is mounted from now on be seen here alone; returns whether something can be mounted."""
    return os.geteuid() == 0 and not ctypes.CDLL(None).unshare(_CLONE_NEWNS) and mount("--make-rprivate", "/")


def mount(*words: str) -> bool:
    """Mount something; returns whether that was possible."""
    return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0


def unmount(place: str) -> None:
    """Unmount it, also if somebody is in it."""
    subprocess.run(["umount", "-l", place], check=True)
