"""Tells what storage said when a save failed. torch and its checkpoints often raise something else.

torch.save writes to a path in C++ and raises "unexpected pos 576 vs 534", whether the disk was full, a quota used up or
the file too large. The number of the refused system call is still there, in the thread's errno, when the exception
comes out: it is cleared before a save and read after one that failed. A sharded checkpoint puts what one rank met at
the end of a long text of its own.
"""

import ctypes
import errno
import os
import re
from collections.abc import Mapping

from ncclwatch.rank.where.handlers import raised_by_handler

ERROR_CHARS_MAX = 200
_CHAIN_MAX = 8
# What system calls that write answer; any other number may be of a call that has nothing to do with the save.
_STORAGE = frozenset((
    errno.EDQUOT, errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EROFS, errno.ESTALE, errno.EACCES, errno.EPERM,
    errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ETIMEDOUT,
))  # fmt: skip
# torch's writer in C++, that keeps no number. Other exceptions that have none are not of storage.
_LOST = re.compile(r"inline_container|iostream error|file write failed|cannot be opened")
_location = getattr(ctypes.CDLL(None), "__errno_location", None)
if _location is not None:
    _location.restype = ctypes.POINTER(ctypes.c_int)


def clear_errno() -> None:
    """Forget what system calls of this thread were refused before."""
    if _location is not None:
        _location()[0] = 0


def last_errno() -> int:
    """Return the number with which the newest refused system call of this thread was refused, 0 if none was."""
    return int(_location()[0]) if _location is not None else 0


def words_of(error: BaseException, refused: int) -> str:
    """Return what a save raised and, where its text does not tell, what storage had answered.

    `refused`: `last_errno()` as it was when the exception came.
    """
    try:
        inner = _of_a_rank(error)
        words = f"{type(inner).__name__}: {inner}"
        number = _number(inner) or (refused if _LOST.search(words) and refused in _STORAGE else 0)
        why = os.strerror(number) if number else ""
        if not why or why in words[:ERROR_CHARS_MAX]:
            return words[:ERROR_CHARS_MAX]
        why = f" ([Errno {number}] {why})"
        return words[: ERROR_CHARS_MAX - len(why)] + why
    except Exception as raised:  # of an exception that cannot be told
        if raised_by_handler(raised):
            raise
        return type(error).__name__


def _of_a_rank(error: BaseException) -> BaseException:
    """Return what the first rank met for which a sharded checkpoint failed; any other exception as it is."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, Mapping) and failures:
        first = next(iter(failures.values()))
        inner = first[0] if isinstance(first, tuple) and first else first
        return inner if isinstance(inner, BaseException) else error
    return error


def _number(error: BaseException) -> int:
    """Return the number of a refusal by storage that an exception was raised from, 0 if there is none.

    What was merely being handled when it was raised may be of something else: a save is often what a handler does.
    """
    found: BaseException | None = error
    for _ in range(_CHAIN_MAX):
        if found is None:
            return 0
        if isinstance(found, OSError) and found.errno in _STORAGE:
            return found.errno
        found = found.__cause__
    return 0
