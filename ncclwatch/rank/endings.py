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
from types import FrameType, TracebackType

from ncclwatch.contract.ring.facts import THREAD
from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.where.call_sites import describe_exception
from ncclwatch.rank.where.handlers import handlers, quietly, raised_by_handler

TEXT_MAX = 200  # characters of each of two exceptions, where one came of the other


def install(patches: Patches, current: Callable[[], Recorder | None], rest: Callable[[], None]) -> None:
    """Hook what runs at the end: the exception hook, atexit, os._exit.

    `rest` ends our own threads. Python ends a thread that comes back from native code into an interpreter
    that is gone by unwinding its stack, and torch's frames answer that with SIGABRT.
    """
    previous, caught = sys.excepthook, _Caught(current)

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        recorder = current()
        try:
            if recorder is not None and _runs_on():
                caught.keep(error)
            elif recorder is not None:
                note(recorder, "crashed", 1, _described(recorder, error))
        finally:
            previous(kind, error, trace)

    def at_exit() -> None:
        recorder, error = current(), _unhandled()
        if recorder is not None and error is not None:  # the hook of another stood before ours, or broke
            note(recorder, "crashed", 1, _described(recorder, error))
        elif recorder is not None:
            code, told = caught.last()
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
        self._main: Mapping[str, object] | None = None  # of the main thread's own state: another thread may ask
        self._issued = 0
        self._code: int | None = None  # that it asked for; None: another one than 0 is not known of

    def ask_to_exit(self, status: object = None) -> None:
        """Keep the code with which the main thread asks to exit: the kernel tells it seconds later."""
        recorder = self._current()
        if recorder is None or threading.current_thread() is not threading.main_thread():
            return
        self.see()
        if self._has_gone_on():
            self._found = None
            self._note_main(recorder)
        failed = status not in (None, 0)
        self._code = (status & 0xFF if isinstance(status, int) else 1) or None if failed else None

    def see(self, *_: object, **__: object) -> None:
        """Keep what is in hand, if anything is; not the exception itself, which holds all that its frames hold."""
        error = sys.exc_info()[1]
        if error is not None and not _is_interrupted(error):
            self.keep(error)

    def keep(self, error: BaseException) -> None:
        """Keep how an exception of the main thread is described."""
        recorder = self._current()
        ends = isinstance(error, (SystemExit, GeneratorExit))
        if recorder is None or ends or threading.current_thread() is not threading.main_thread():
            return
        self._found = _described(recorder, error)
        self._note_main(recorder)

    def last(self) -> tuple[int | None, dict[str, object] | None]:
        """Return the code and the exception that were kept, None if the main thread has gone on since."""
        return (None, None) if self._has_gone_on() else (self._code, self._found)

    def _note_main(self, recorder: Recorder) -> None:
        self._main, self._issued = vars(recorder.thread()), recorder.thread().issued

    def _has_gone_on(self) -> bool:
        return self._main is None or self._main["issued"] != self._issued


def _runs_on() -> bool:
    """Say whether the program runs while a hook for its last exception is called: then it has handled that one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame is not None


def _is_interrupted(error: BaseException) -> bool:
    """Say whether the exception in hand is of code that a signal handler, in which we are, has interrupted."""
    catcher = error.__traceback__.tb_frame if error.__traceback__ is not None else None
    frame: FrameType | None = sys._getframe(1)
    codes = handlers()
    while frame is not None and frame is not catcher:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


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
    first = _first_of(error)
    if first is not error:  # a peer that was lost may be what the program made another error of
        told["exc"] = f"{str(told['exc'])[:TEXT_MAX]} (after {type(first).__name__}: {str(first)[:TEXT_MAX]})"
    places = {"file": "exc_file", "line": "exc_line", "function": "exc_function"}
    return {"exception": told["exc"]} | {name: told[key] for name, key in places.items() if key in told}


def _first_of(error: BaseException) -> BaseException:
    """Return the exception from which, or while handling which, another one was raised, and so on down to the first."""
    passed = [error]
    while True:
        below = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if below is None or any(below is each for each in passed):
            return error
        passed.append(below)
        error = below


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
                error = caught.last()[1] if status else None
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
