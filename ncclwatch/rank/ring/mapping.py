"""Makes the file of a ring and maps it, without a descriptor that stays open."""

import ctypes
import mmap
import os
from collections.abc import Callable

from ncclwatch.contract.machine.private_dirs import PrivateDir
from ncclwatch.contract.ring import layout

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

RING_MODE = 0o400  # it is mapped for writing before that counts; by its name nobody but root can cut it short


class Mapping(ctypes.Array[ctypes.c_char]):
    """The bytes of a ring, mapped without a descriptor.

    `mmap.mmap` keeps one to the end, and closes it: a file of the user's by then, where a program has closed all of its
    descriptors to become a daemon.
    """

    _type_ = ctypes.c_char
    _length_ = layout.RING_BYTES

    def __del__(self, unmap: "Callable[[int, int], object]" = _libc.munmap) -> None:
        """Let the memory go, when nobody has a view of it any more."""
        unmap(ctypes.addressof(self), layout.RING_BYTES)


def _map(fd: int) -> Mapping:
    address = _libc.mmap(None, layout.RING_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return Mapping.from_address(address)


def create(place: PrivateDir, name: str) -> Mapping:
    """Create the file with all its blocks, so that a full /dev/shm is an OSError now and no SIGBUS later.

    A file cut short under its mapping is a SIGBUS, too: its mode forbids that to all but root, who could do it to any.
    """
    fd = place.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, RING_MODE)
    try:
        os.posix_fallocate(fd, 0, layout.RING_BYTES)
        return _map(fd)
    except BaseException:
        place.unlink(name)
        raise
    finally:
        os.close(fd)
