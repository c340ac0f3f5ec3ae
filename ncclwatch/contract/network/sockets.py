"""Names the socket of a rank's worker server, and reaches a socket whose path is long.

The name says which process it is, also when a process id comes again or is used in two containers.
"""

import contextlib
import os
from collections.abc import Iterator

PATH_BYTES_MAX = 107  # of sockaddr_un on Linux, without the closing zero
SUFFIX = ".sock"


def worker_socket(directory: str, pid: int, start_ticks: int) -> str:
    """Return the path of a rank's socket in the runtime directory."""
    return f"{directory}/{pid}-{start_ticks:x}{SUFFIX}"


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Give a path to the same socket that the kernel takes, however long the real one is.

    A path through /proc/self/fd has the length of a number, whatever directory that number stands for. Raises
    OSError where the directory cannot be opened.
    """
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield path
        return
    directory, name = os.path.split(path)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
