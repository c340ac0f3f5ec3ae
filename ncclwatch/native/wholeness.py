"""Says whether a library is whole before it is loaded: touching what is cut off of one ends the process by SIGBUS.

A copy that was interrupted leaves such a file, or a disk that was full meanwhile.
"""

import os
import stat
import struct
from pathlib import Path

_ELF_64_LITTLE = b"\x7fELF\x02\x01"  # all machines for which there is a native recorder
_HEADER = struct.Struct("<32xQ14xHH")  # of the file (elf(5)): where the program headers are, the size of one, how many
_HEADER_BYTES = 64
_PROGRAM_HEADER = struct.Struct("<8xQ16xQ")  # where in the file a segment begins, and its bytes there


def trouble(path: Path) -> str:
    """Return what is wrong with a library, as the end of a sentence; "" if the loader may have it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would be waited for
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return "is no plain file"
        header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES or not header.startswith(_ELF_64_LITTLE):
            return "is no library, or cut off"
        at, size, count = _HEADER.unpack_from(header)
        file.seek(at)
        table = file.read(size * count)
    if size < _PROGRAM_HEADER.size or len(table) < size * count:
        return f"is cut off after {found.st_size} bytes"
    needed = max((sum(_PROGRAM_HEADER.unpack_from(table, size * n)) for n in range(count)), default=0)
    return f"is cut off: it has {found.st_size} bytes of at least {needed}" if found.st_size < needed else ""
