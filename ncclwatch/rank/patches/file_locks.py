"""Records which file lock the main thread polls for: that it tries again and again no kernel tells.

The kernel tells who waits inside flock() or fcntl(). Many libraries, filelock among them, try with LOCK_NB and sleep.
"""

import errno
import fcntl
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder

Current = Callable[[], Recorder | None]
_HELD = (errno.EAGAIN, errno.EACCES)  # by another process
_MAIN = threading.main_thread().ident


class _Tries:
    """Tries for one file with no operation in between, the last of which failed."""

    inode = 0
    operations = 0  # recorded before them


def install(patches: Patches, current: Current) -> None:
    """Patch the two calls of Python that take a file lock."""
    tries = _Tries()
    for name in ("flock", "lockf"):
        patches.replace(fcntl, name, lambda f: _make_lock(f, current, tries))


def _make_lock(original: Callable[..., object], current: Current, tries: _Tries) -> Callable[..., object]:
    @functools.wraps(original)
    def lock(file: Any, operation: int, *where: object) -> object:
        recorder = current()
        if recorder is None or not operation & fcntl.LOCK_NB or threading.get_ident() != _MAIN:
            return original(file, operation, *where)
        try:
            result = original(file, operation, *where)
        except OSError as error:
            if error.errno in _HELD:
                guarded.attempt(recorder, _note_failure, recorder, tries, file)
            raise
        guarded.attempt(recorder, _note_success, recorder, tries)
        return result

    return lock


def _note_failure(recorder: Recorder, tries: _Tries, file: Any) -> None:
    """Record a try: which file it was for, since when it is tried, and when last."""
    ring, now_ns = recorder.ring, time.monotonic_ns()
    inode = os.fstat(file if isinstance(file, int) else file.fileno()).st_ino
    operations = ring.word(Word.EVENTS_HEAD)
    ring.set_word(Word.LOCK_TRIED_NS, now_ns)
    if (tries.inode, tries.operations) != (inode, operations):
        tries.inode, tries.operations = inode, operations
        ring.set_word(Word.LOCK_POLLED, 0)
        ring.set_word(Word.LOCK_SINCE_NS, now_ns)
        ring.set_word(Word.LOCK_POLLED, inode)


def _note_success(recorder: Recorder, tries: _Tries) -> None:
    tries.inode = 0
    recorder.ring.set_word(Word.LOCK_POLLED, 0)
