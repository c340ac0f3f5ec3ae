"""Writes to the ring how this rank ends, as far as the rank itself still can.

The agent sees exit codes and signals from outside; what only the rank knows is the exception.
"""

import atexit
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder, describe_exception


def install(patches: Patches, current: Callable[[], Recorder | None], rest: Callable[[], None]) -> None:
    """Hook what runs at the end: the exception hook, atexit, os._exit.

    `rest` ends our own threads. Python ends a thread that comes back from native code into an interpreter
    that is gone by unwinding its stack, and torch's frames answer that with SIGABRT.
    """
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        recorder = current()
        if recorder is not None:
            note(recorder, "crashed", 1, error)
        previous(kind, error, trace)

    def at_exit() -> None:
        recorder, error = current(), _unhandled()
        if recorder is not None and error is not None:  # the hook of another stood before ours, or broke
            note(recorder, "crashed", 1, error)
        elif recorder is not None:
            note(recorder, "exited", None, None)
        rest()

    sys.excepthook = excepthook
    atexit.register(at_exit)
    patches.on_restore(lambda: atexit.unregister(at_exit))
    patches.on_restore(lambda: _put_back_hook(excepthook, previous))
    patches.replace(os, "_exit", lambda original: _make_exit(original, current))


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


def _make_exit(original: Callable[..., object], current: Callable[[], Recorder | None]) -> Callable[..., object]:
    def _exit(status: int) -> object:
        recorder = current()
        if recorder is not None:
            note(recorder, "exited" if status == 0 else "crashed", status, None)
        return original(status)

    return _exit


def note(recorder: Recorder, kind: str, code: int | None, error: BaseException | None) -> None:
    """Write how this rank ends, unless that is known already. Never raises."""
    try:
        ring = recorder.ring
        if ring.word(Word.ENDED):
            return
        found: dict[str, object] = {"kind": kind, "exit_code": code}
        if error is not None:
            told = describe_exception(error, recorder.sites)
            found |= {"exception": told["exc"]}
            if "exc_file" in told:
                found |= {
                    "file": told["exc_file"],
                    "line": told["exc_line"],
                    "function": told["exc_function"],
                }
        ring.set_word(Word.ENDED_NS, time.monotonic_ns())
        ring.set_word(Word.ENDED, ring.told(found, kept=True))
    except Exception:  # dying is hard enough
        return
