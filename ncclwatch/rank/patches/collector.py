"""Measures how much time Python's garbage collector takes from this rank. It stops the thread that trains.

Nothing here may run a line of Python while the collector does: Python would run the user's signal handlers there, and
drop what they raise (Ctrl-C, sys.exit on SIGTERM). So what the collector calls is put together from parts in C.
"""

import functools
import gc
import operator
import time
from collections import deque
from collections.abc import Callable
from itertools import accumulate, repeat

from ncclwatch.contract.ring.layout import Word

_called: Callable[..., object] | None = None  # by the collector, while a ring is written


class _Phases:
    """What the collector says, as attributes: to read one calls the method beside it."""

    start = property(operator.methodcaller("begin"))
    stop = property(operator.methodcaller("end"))

    def __init__(self, words: memoryview) -> None:
        began = deque([time.monotonic_ns()], maxlen=1)
        clock = iter(time.monotonic_ns, None)
        spent = map(operator.sub, clock, map(operator.itemgetter(0), repeat(began)))
        self.begin = map(began.append, clock).__next__
        self.end = map(functools.partial(operator.setitem, words, Word.GC_NS), accumulate(spent)).__next__


def begin(words: memoryview) -> None:
    """Have the collector's time added up in a ring's words from now on."""
    global _called
    end()
    _called = functools.partial(getattr, _Phases(words))  # called with the phase, and what getattr takes as a default
    gc.callbacks.append(_called)


def end() -> None:
    """Take it off: the ring is closed, or belongs to the parent of this process."""
    global _called
    called, _called = _called, None
    if called in gc.callbacks:
        gc.callbacks.remove(called)
