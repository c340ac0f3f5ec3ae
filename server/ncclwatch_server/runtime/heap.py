"""Gives memory that is not needed any more back to the system: large blocks at once.

The tables of a big job are laid out anew when its nodes come and go, in blocks of megabytes. After the first of them
glibc takes such blocks from its heap, where small ones that live on keep them: with 16,384 ranks it held 20 MB that
nobody used.
"""

import contextlib
import ctypes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_LARGE_BYTES = 512 * 1024


def give_back_large_blocks() -> None:
    """Let blocks beyond half a megabyte be mapped, each for itself. Does nothing where the C library is not glibc."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
