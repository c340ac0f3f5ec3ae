"""Reads a pickle that a stranger may have written, without ever importing or calling anything.

A Flight Recorder dump is dicts, lists, strings, numbers and None. Whatever asks for a global, a
persistent object or more memory than such a dump can need is refused.
"""

import contextlib
import io
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path

from ncclwatch_server.offline.errors import Unreadable

MEMORY_BYTES_MAX = 4 << 30  # that one file may make this process grow by
# What the unpickler of CPython raises on bytes that are no pickle, or a hostile one.
_GARBAGE = (
    pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, LookupError, OverflowError,
    RecursionError, TypeError, ValueError, AssertionError, NotImplementedError,
)  # fmt: skip


class _Refusing(pickle.Unpickler):
    """An unpickler that knows plain values only. The inherited loop runs in C."""

    def find_class(self, module: str, name: str) -> object:
        raise Unreadable(f"it asks for {module[:60]}.{name[:60]}, which no Flight Recorder dump does; it was not run")

    def persistent_load(self, pid: object) -> object:
        raise Unreadable("it asks for a persistent object, which no Flight Recorder dump does")


def load(file: io.BufferedReader) -> object:
    """Return the plain value in a pickle. Raises `Unreadable`.

    A buffered reader can be looked ahead in; without that the unpickler asks for every few bytes anew.
    """
    try:
        return _Refusing(file).load()
    except MemoryError as error:
        raise Unreadable("it asks for more memory than a dump can need") from error
    except _GARBAGE as error:
        raise Unreadable(f"it is no whole pickle ({type(error).__name__}: {str(error)[:120]})") from error


@contextlib.contextmanager
def bounded_memory(more_bytes: int = MEMORY_BYTES_MAX) -> Iterator[None]:
    """Let this process grow by so much at most: a few bytes of a pickle can ask for terabytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space_bytes() + more_bytes
    limit = min(each for each in (wanted, soft, hard) if each != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()
