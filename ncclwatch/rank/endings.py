"""Writes to the ring how this rank ends, as far as the rank itself still can.

The agent sees exit codes and signals from outside; what only the rank knows is the exception.
"""

import atexit
import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType

from ncclwatch.contract.ring.facts import THREAD
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.where.call_sites import describe_exception
from ncclwatch.rank.where.handlers import quietly, raised_by_handler


def install(patches: Patches, current: Callable[[], Recorder | None], rest: Callable[[], None]) -> None:
    """Hook what runs at the end: the exception hook, atexit, os._exit.

    `rest` ends our own threads. Python ends a thread that comes back from native code into an interpreter
    that is gone by unwinding its stack, and torch's frames answer that with SIGABRT.
    """
    previous, caught = sys.excepthook, _Caught(current)

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        recorder = current()
        try:
            if recorder is not None:
                note(recorder, "crashed", 1, _described(recorder, error))
        finally:
            previous(kind, error, trace)

    def at_exit() -> None:
        recorder, error = current(), _unhandled()
        if recorder is not None and error is not None:  # the hook of another stood before ours, or broke
            note(recorder, "crashed", 1, _described(recorder, error))
        elif recorder is not None:
            code, told = caught.last(recorder)
            note(recorder, "crashed" if code else "exited", code, told)
        rest()

    sys.excepthook = excepthook
    patches.replace(
        threading, "excepthook", lambda original: _around(original, functools.partial(_note_thread, current))
    )
    atexit.register(at_exit)
    patches.on_restore(lambda: atexit.unregister(at_exit))
    patches.on_restore(lambda: _put_back_hook(excepthook, previous))
    patches.replace(os, "_exit", lambda original: _make_exit(original, current, caught))
    patches.replace(sys, "exit", lambda original: _around(original, caught.ask_to_exit))
    for name in ("print_exception", "format_exception"):
        patches.replace(traceback, name, lambda original: _around(original, caught.see))


class _Caught:
    """The exception that the main thread had in hand when it last printed one, or asked to exit, and with which code.

    Whoever catches an exception and exits (torch.multiprocessing.spawn, hydra, many programs) leaves an exit code, and
    no exception for any hook. If the rank has gone on to an operation since, it is no part of its end.
    """

    def __init__(self, current: Callable[[], Recorder | None]) -> None:
        self._current = current
        self._found: dict[str, object] | None = None
        self._issued = 0
        self._code: int | None = None  # that it asked for; None: another one than 0 is not known of

    def ask_to_exit(self, status: object = None) -> None:
        """Keep the code with which the main thread asks to exit: the kernel tells it seconds later."""
        recorder = self._current()
        if recorder is None or threading.current_thread() is not threading.main_thread():
            return
        self.see()
        if self._issued != recorder.thread().issued:
            self._found, self._issued = None, recorder.thread().issued
        failed = status not in (None, 0)
        self._code = (status & 0xFF if isinstance(status, int) else 1) or None if failed else None

    def see(self, *_: object, **__: object) -> None:
        """Keep what is in hand, if anything is; not the exception itself, which holds all that its frames hold."""
        error, recorder = sys.exc_info()[1], self._current()
        ends = isinstance(error, (SystemExit, GeneratorExit))
        if recorder is None or error is None or ends or threading.current_thread() is not threading.main_thread():
            return
        self._found, self._issued = _described(recorder, error), recorder.thread().issued

    def last(self, recorder: Recorder) -> tuple[int | None, dict[str, object] | None]:
        """Return the code and the exception that were kept, None if the rank has gone on since."""
        return (self._code, self._found) if self._issued == recorder.thread().issued else (None, None)


def _note_thread(current: Callable[[], Recorder | None], ended: threading.ExceptHookArgs) -> None:
    """Record the exception that ends a thread: nothing of it reaches the others, which may wait for what it made."""
    recorder, error = current(), ended.exc_value
    if recorder is None or error is None or isinstance(error, SystemExit):
        return
    told = _described(recorder, error) or {}
    name = ended.thread.name if ended.thread is not None else ""
    recorder.facts.tell(THREAD, name=name, at_ns=time.monotonic_ns(), **told)


def _around(original: Callable[..., object], first: Callable[..., None]) -> Callable[..., object]:
    @functools.wraps(original)
    def around(*args: object, **kwargs: object) -> object:
        with quietly:  # an error of ours must not stand in for the program's
            first(*args, **kwargs)
        return original(*args, **kwargs)

    return around


def _described(recorder: Recorder, error: BaseException) -> dict[str, object] | None:
    """Return an exception as a note holds it, None if it cannot be told."""
    try:
        told = describe_exception(error, recorder.sites)
    except Exception as raised:  # an exception whose text raises
        if raised_by_handler(raised):
            raise
        return {"exception": type(error).__name__}
    places = {"file": "exc_file", "line": "exc_line", "function": "exc_function"}
    return {"exception": told["exc"]} | {name: told[key] for name, key in places.items() if key in told}


def _unhandled() -> BaseException | None:
    """Return the exception that ends this program, None if it ends well.

    Python keeps it before it calls any hook. torch's own hook, which swaps sys.stderr, is lost together with the
    traceback if another exception comes in it from a signal handler: seen when a loader's worker was killed, and the
    broken pipe came first. Exceptions that others have printed (interactive shells, callbacks from C) did not
    leave the main module.
    """
    error: object = getattr(sys, "last_value", None)
    main = sys.modules.get("__main__")
    if not isinstance(error, BaseException) or main is None:
        return None
    trace = error.__traceback__
    while trace is not None:  # with `python -m` frames of the standard library stand before the program's
        if trace.tb_frame.f_code.co_name == "<module>" and trace.tb_frame.f_globals is vars(main):
            return error
        trace = trace.tb_next
    return None


def _put_back_hook(ours: object, previous: Callable[..., object]) -> None:
    if sys.excepthook is ours:
        sys.excepthook = previous


def _make_exit(
    original: Callable[..., object], current: Callable[[], Recorder | None], caught: _Caught
) -> Callable[..., object]:
    def _exit(status: int) -> object:
        recorder = current()
        if recorder is not None:
            error = None
            with quietly:  # dying is hard enough
                caught.see()
                error = caught.last(recorder)[1] if status else None
            note(recorder, "exited" if status == 0 else "crashed", status, error)
        return original(status)

    return _exit


def note(recorder: Recorder, kind: str, code: int | None, error: Mapping[str, object] | None) -> None:
    """Write how this rank ends, unless that is known already. Never raises."""
    try:
        ring = recorder.ring
        if ring.word(Word.ENDED):
            return
        found = {"kind": kind, "exit_code": code, **(error or {})}
        ring.set_word(Word.ENDED_NS, time.monotonic_ns())
        ring.set_word(Word.ENDED, ring.told(found, kept=True))
    except Exception:  # dying is hard enough
        return
