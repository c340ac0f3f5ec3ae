"""Knows which processes the agent itself has halted, to read their native frames: nothing has stopped those."""

import contextlib
from collections import Counter
from collections.abc import Iterator

_HALTED: Counter[int] = Counter()  # pid -> readers of its frames


@contextlib.contextmanager
def halting(pid: int) -> Iterator[None]:
    """Say that a process may be halted by the agent meanwhile."""
    _HALTED[pid] += 1
    try:
        yield
    finally:
        _HALTED[pid] -= 1
        if not _HALTED[pid]:
            del _HALTED[pid]


def is_halted(pid: int) -> bool:
    """Say whether the agent may have halted a process."""
    return pid in _HALTED
