"""Counts the threads of a rank that may yet issue an operation, or let go of a lock, and have no row in the ring.

Only threads that have issued something have a row. One that loads weights for a minute before its first send is none of
them, and all others may wait for it.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from types import FrameType

COUNTED_MAX = 255
_OURS = "ncclwatch-"
_WAITS = ("wait", "join", "_wait_for_tstate_lock")  # innermost frames of these waits, by version of Python
_DISTRIBUTED = "/torch/distributed/"  # runs collectives in threads of its own, as for asynchronous checkpoints


def count(
    frames: Mapping[int, FrameType], recorded: Collection[int], is_users: Callable[[FrameType | None], object]
) -> int:
    """Return how many threads of Python may act by themselves, besides the main thread and those in `recorded`.

    `frames` are the innermost ones by thread, `is_users` finds a frame of the user's own code from one outwards.
    Threads of libraries do not count, nor do those that wait without a timeout for what others do.
    """
    main = threading.main_thread().ident
    found = 0
    for thread in threading.enumerate():
        ident = thread.ident
        frame = frames.get(ident) if ident is not None else None
        if frame is None or ident == main or ident in recorded or thread.name.startswith(_OURS):
            continue
        found += not _waits(frame) and (is_users(frame) is not None or _is_in_torch(frame))
    return min(found, COUNTED_MAX)


def _waits(frame: FrameType) -> bool:
    """Say whether a thread waits for others without a timeout: for a condition, an event, a queue or a thread."""
    code = frame.f_code
    if code.co_filename != threading.__file__ or code.co_name not in _WAITS:
        return False
    return frame.f_locals.get("timeout", -1) in (None, -1)


def _is_in_torch(frame: FrameType | None) -> bool:
    while frame is not None:
        if _DISTRIBUTED in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
