"""Tells the program's signal handlers, and what they raise, from what they interrupt.

Python may run a signal handler while our code is under way, and handlers raise: torch's own when a loader's worker
dies, a user's on SIGALRM. Such an exception is not ours to keep.
"""

import functools
import signal
from collections.abc import Callable
from types import CodeType, TracebackType

# signal.getsignal() makes an enum of each answer, which takes a hundred times as long.
_getsignal: Callable[[int], object] = getattr(vars(signal).get("_signal"), "getsignal", signal.getsignal)


class Quietly:
    """A block whose exceptions nobody misses, but for what a signal handler raises: that reaches the program."""

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Keep an exception of ours."""
        return isinstance(error, Exception) and not raised_by_handler(error)


quietly = Quietly()


def raised_by_handler(error: BaseException | None) -> bool:
    """Whether an exception has come through a signal handler that is in force now."""
    trace = error.__traceback__ if error is not None else None
    codes: set[CodeType] = set()
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    return not codes.isdisjoint(handlers())


def handlers() -> frozenset[CodeType]:
    """Return the code of the signal handlers that are in force now. What stands below one was interrupted by it."""
    # No generator: what a signal handler raises while one is closed is lost.
    found: set[CodeType] = set()
    for number in range(1, signal.NSIG):
        handler = _getsignal(number)
        code = _code_of(handler) if callable(handler) else None
        if isinstance(code, CodeType):
            found.add(code)
    return frozenset(found)


def _code_of(handler: object) -> object:
    """Return the code of a signal handler, None if it is none in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    called = handler if hasattr(handler, "__code__") or hasattr(handler, "__func__") else type(handler).__call__
    return getattr(called, "__code__", None)
