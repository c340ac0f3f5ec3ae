"""Does things as a second user of this machine: root is needed, to become one."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

import pytest

UID = 54_321  # nobody's

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


@contextmanager
def shared_memory() -> Iterator[Path]:
    """Give a directory like /dev/shm itself: everybody may make something there, and remove only what is their own."""
    place = Path(tempfile.mkdtemp(prefix="ncclwatch-shared-", dir="/dev/shm"))
    place.chmod(0o1777)
    try:
        yield place
    finally:
        rmtree(place)


def shell(command: str, *arguments: str | Path) -> None:
    """Run a command of the shell as the second user; $0, $1... are the arguments."""
    subprocess.run(
        ["/bin/sh", "-ec", command, *map(str, arguments)], user=UID, group=UID, extra_groups=[], check=True, cwd="/"
    )


def fork(function: Callable[[], object]) -> int:
    """Call a function in a child of this process that is the second user, and return its exit code or signal.

    Python itself may lie where that user cannot read, so what the function needs is loaded already.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
