"""What patches do with the recorder around the user's call. None of it raises: a gap is counted instead.

But Python may run a signal handler while our code is under way, and handlers raise: torch's own when a loader's worker
dies, a user's on SIGALRM. Such an exception is not ours to keep.
"""

import contextlib
import functools
import signal
import sys
from collections.abc import Callable
from types import CodeType
from typing import TypeVar

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.rank.data.loaders import Pass
from ncclwatch.rank.recorder import Recorder

Answer = TypeVar("Answer")


def count_gap(recorder: Recorder) -> None:
    """Count something that could not be recorded, in an `except` clause. Raises again what a signal handler raised."""
    with contextlib.suppress(Exception):
        recorder.ring.count_dropped()
    if _raised_by_handler(sys.exc_info()[1]):
        raise


def _raised_by_handler(error: BaseException | None) -> bool:
    """Whether an exception has come through a signal handler that is in force now."""
    trace = error.__traceback__ if error is not None else None
    codes: set[CodeType] = set()
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    return any(_code_of(signal.getsignal(number)) in codes for number in signal.valid_signals())


def _code_of(handler: object) -> object:
    """Return the code of a signal handler, None if it is none in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    called = handler if hasattr(handler, "__code__") or hasattr(handler, "__func__") else type(handler).__call__
    return getattr(called, "__code__", None)


def attempt(recorder: Recorder, record: Callable[..., object], *arguments: object) -> None:
    """Record something, whatever comes of it."""
    try:
        record(*arguments)
    except Exception:
        count_gap(recorder)


def ask(recorder: Recorder, question: Callable[[], Answer]) -> Answer | None:
    """Return the answer, None if it could not be had."""
    try:
        return question()
    except Exception:
        count_gap(recorder)
        return None


def enter(recorder: Recorder, kind: WaitKind, depth: int, number: int = 0) -> bytes | None:
    """Say that this thread enters a wait at the user's line `depth` frames out; returns what `leave` takes.

    `number`: of the process group that it makes.
    """
    try:
        return recorder.enter(kind, recorder.sites.here(depth + 1), number=number)
    except Exception:
        count_gap(recorder)
        return None


def enter_draw(recorder: Recorder, this: Pass, depth: int) -> bytes | None:
    """Say that this thread waits for a batch, drawn by the frame `depth` out; returns what `leave` takes.

    Who draws is looked for once for a place and not for each batch.
    """
    try:
        frame = sys._getframe(depth)
        if frame.f_lasti != this.at or frame.f_code is not this.code:
            this.code, this.at, this.site = frame.f_code, frame.f_lasti, recorder.sites.here(depth + 1)
        return recorder.enter(WaitKind.DATA, this.site)
    except Exception:
        count_gap(recorder)
        return None


def leave(recorder: Recorder, outer: bytes | None) -> None:
    """Say that this thread left its wait; None: it was not recorded."""
    if outer is None:
        return
    try:
        recorder.leave(outer)
    except Exception:
        count_gap(recorder)
