"""Lets the n-th system call that Python makes fail, and sees to it that no descriptor is left open."""

import errno
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Of `os`. close() is not here: a failure of it cannot be answered.
CALLS = (
    "open", "fstat", "stat", "lstat", "posix_fallocate", "pread", "rename", "replace", "fsync", "fdopen", "mkdir",
    "dup", "fchmod", "scandir", "listdir",
)  # fmt: skip
NUMBERS_MAX = 1000


class Count:
    """How many calls of the kind there were."""

    calls = 0


@contextmanager
def failing(name: str, number: int, error: Callable[[], BaseException]) -> Iterator[Count]:
    """Let one call of a function of `os` fail, counted from 1."""
    real, count = getattr(os, name), Count()

    def call(*arguments: object, **named: object) -> object:
        count.calls += 1
        if count.calls == number:
            raise error()
        return real(*arguments, **named)

    setattr(os, name, call)
    try:
        yield count
    finally:
        setattr(os, name, real)


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def each_failure(name: str, attempt: Callable[[int], None], error: Callable[[], BaseException] = no_space) -> int:
    """Let the first call fail, the second, and so on, until there is none more. Returns how many there are."""
    for number in range(1, NUMBERS_MAX):
        before = descriptors()
        with failing(name, number, error) as count:
            attempt(number)
        # `PrivateDir.close` asks fstat() whether the descriptor is still its own, and leaves it alone if nobody knows.
        assert name == "fstat" or descriptors() <= before, f"call {number} of os.{name} leaves a descriptor open"
        if count.calls < number:
            return number - 1
    raise AssertionError(f"there is always one more call of os.{name}")
