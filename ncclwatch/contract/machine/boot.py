"""Says where a process runs: on which host and machine, and among which processes."""

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from ncclwatch.contract.config import ENV_HOST

_BOOT_ID = "/proc/sys/kernel/random/boot_id"  # random, another one after each boot; proc(5)
_HOST_CHARS_MAX = 200


def host_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return what this host is called in verdicts: what NCCLWATCH_HOST says, or its host name."""
    said = "".join(c for c in environ.get(ENV_HOST, "").strip() if c.isprintable())
    return said[:_HOST_CHARS_MAX] or os.uname().nodename


def machine(path: str = _BOOT_ID) -> str:
    """Return a word that stands for this boot of this machine, the same in all of its containers; "" if unknown.

    It is a hash: the boot id itself stays on the machine.
    """
    try:
        with open(path, "rb") as file:
            boot_id = file.read(64).strip()
    except OSError:
        return ""
    return hashlib.blake2b(boot_id, digest_size=16, person=b"ncclwatch").hexdigest() if boot_id else ""


@functools.cache
def pid_namespace() -> str:
    """Return the number of this process's PID namespace, "" if unknown.

    Processes in the same one see each other, unless /proc is that of another namespace, or hides processes.
    """
    try:
        found = str(Path("/proc/self/ns/pid").stat().st_ino)
        return found if str(Path("/proc/self").readlink()) == str(os.getpid()) else ""
    except OSError:
        return ""
