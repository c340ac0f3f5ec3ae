"""Tells where this rank stands, by itself: for nodes where nobody may read its memory from outside.

Without permission to trace, py-spy sees nothing. The agent then lays a file beside the ring; the pulse finds it within
half a second and writes the Python stacks of all threads next to it. No signal is used: the handlers are the
user's. It needs the GIL, so a rank that holds it in native code cannot answer: then its silence is the answer.
"""

import json
import sys
import threading
from types import FrameType

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import PrivateDir

THREADS_MAX = 64


def answer(place: PrivateDir, name: str) -> bool:
    """Write the stacks if somebody has asked. `name` is that of this rank's ring; returns whether it was asked.

    Raises OSError if the answer cannot be written; the question is gone then as well.
    """
    question = name + config.ASK_SUFFIX
    if place.stat(question) is None:
        return False
    place.unlink(question)
    place.write(name + config.ANSWER_SUFFIX, json.dumps(stacks()).encode("utf-8", "replace"))
    return True


def stacks() -> list[dict[str, object]]:
    """Return the Python stacks of all threads but this one, in the shape of py-spy's JSON."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found: list[dict[str, object]] = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident() and len(found) < THREADS_MAX:
            name = "MainThread" if ident == main else names.get(ident, f"thread {ident}")
            found.append({"thread_name": name, "frames": _frames(frame)})
    return found


def _frames(frame: FrameType | None) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    while frame is not None and len(found) < config.STACK_DEPTH_MAX:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        found.append({"name": name, "filename": code.co_filename, "line": frame.f_lineno or 0})
        frame = frame.f_back
    return found
