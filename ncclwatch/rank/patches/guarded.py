"""What patches do with the recorder around the user's call. None of it raises: a gap is counted instead.

What a signal handler raises meanwhile is the program's, and is raised again.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ncclwatch.contract.model.rank import WaitKind
from ncclwatch.rank.data.loaders import Pass
from ncclwatch.rank.operations import Backward, Issued
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import NO_WAIT
from ncclwatch.rank.where.handlers import quietly, raised_by_handler

Answer = TypeVar("Answer")
_MAIN = threading.main_thread().ident


def count_gap(recorder: Recorder) -> None:
    """Count something that could not be recorded, in an `except` clause. Raises again what a signal handler raised."""
    with quietly:
        recorder.ring.count_dropped()
    error = sys.exc_info()[1]
    if not isinstance(error, Exception) or raised_by_handler(error):
        raise


def miss(recorder: Recorder, issued: Issued | None) -> None:
    """Count an operation of which not all could be recorded, in an `except` clause.

    What a signal handler raised keeps it from its backend: it is taken back.
    """
    try:
        count_gap(recorder)
    except BaseException:
        leave(recorder, NO_WAIT)
        if issued is not None:
            attempt(recorder, recorder.refuse, issued)
        raise


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


def enter(recorder: Recorder, kind: WaitKind, depth: int, number: int = 0, name: str = "") -> bytes | None:
    """Say that this thread enters a wait at the user's line `depth` frames out; returns what `leave` takes.

    `number`: of the process group that it makes; `name`: what it waits for.
    """
    try:
        site = recorder.sites.here(depth + 1)
        if name:
            site = recorder.sites.labelled(site, recorder.sites.label(name))
        return recorder.enter(kind, site, number=number)
    except Exception:
        count_gap(recorder)
        return None


def begin_backward(recorder: Recorder, depth: int) -> Backward | None:
    """Say that this thread enters a backward, called `depth` frames out; returns what `end_backward` takes."""
    try:
        return recorder.begin_backward(recorder.sites.here(depth + 1))
    except Exception:
        count_gap(recorder)
        return None


def end_backward(recorder: Recorder, begun: Backward | None) -> None:
    """Say that this thread left its backward; None: it was not recorded."""
    if begun is None:
        return
    try:
        recorder.end_backward(begun)
    except Exception:
        count_gap(recorder)


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


def spend(recorder: Recorder, word: int, since_ns: int) -> None:
    """Add what the main thread has spent since then to a running total; other threads hold nobody up."""
    if threading.get_ident() == _MAIN:
        attempt(recorder, recorder.ring.add_time, word, time.monotonic_ns() - since_ns)


def leave(recorder: Recorder, outer: bytes | None) -> None:
    """Say that this thread left its wait; None: it was not recorded."""
    if outer is None:
        return
    try:
        recorder.leave(outer)
    except Exception:
        count_gap(recorder)
