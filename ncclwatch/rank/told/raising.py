"""Raises `HangError` in the main thread of this rank, where that thread runs Python or waits in Python.

By a signal of real time that nobody else uses: its handler runs in the main thread, also where that sleeps or waits for
a lock, a queue, a pipe or a socket. An exception that is set from another thread (PyThreadState_SetAsyncExc) would be
seen there only after the wait, and perhaps in a job that goes on. A main thread in native code, such as gloo's wait for
its peers, sees neither before it comes back. Then the job may be going on: the handler raises nothing, and asks to be
called again if the hang still stands a while later.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from ncclwatch.contract.on_hang.hang_error import HangError
from ncclwatch.contract.on_hang.told import Told, ToldVerdict

PROMPT_S = 1.0  # a handler that runs later than this after its signal was kept waiting by native code
SETTLE_S = 3.0  # for so long a hang must stand after the main thread has come back from there
SENT_S = 1.0  # for a signal to be sent. A process that was forked meanwhile would wait for ever
_NEVER = float("-inf")


class Raiser:
    """Raises in the main thread. Made there; `consider` is called with each pulse."""

    def __init__(self, number: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Take a signal that nobody uses, see `unused_signal`. Raises ValueError in any thread but the main one."""
        self._clock = clock
        self._number = number
        self._main = threading.main_thread().ident or 0
        self._due: ToldVerdict | None = None
        self._sent_s = 0.0
        self._back_s = _NEVER  # when the main thread last came back from native code
        self._raised: set[str] = set()  # incidents
        self._raised_at_step = -1  # of the newest; -1: none
        self._step = 0
        self._sending = threading.Lock()
        self._closed = False
        self._before = signal.signal(number, self._handle)

    def close(self) -> None:
        """Raise nothing from now on, and give the signal back if that can be done in this thread."""
        self._closed, self._due = True, None
        if threading.get_ident() != self._main or not self._sending.acquire(timeout=SENT_S):
            return
        try:
            if self._number not in signal.sigpending():  # without our handler it would end this process
                signal.signal(self._number, self._before)
        except (ValueError, TypeError):
            pass
        finally:
            self._sending.release()

    def consider(self, told: Told | None, *, blocked: bool, step: int) -> None:
        """Send the signal if it is due.

        `blocked`: the main thread is inside an operation that only its peers can end, and cannot be reached.
        `step`: how many this rank has finished. Who has caught the exception and saves is left in peace: until
        training goes on, no other one is raised.
        """
        verdict = told.to_raise if told is not None else None
        now_s = self._clock()
        self._step = step
        if blocked:
            self._back_s = now_s
        if verdict is None or blocked:
            self._due = None
            return
        if verdict.incident in self._raised or self._raised_at_step == step:
            return
        if self._due is not None or now_s - self._back_s < SETTLE_S:
            return
        with self._sending:
            if self._closed:
                return
            self._sent_s = now_s
            self._due = verdict
            signal.pthread_kill(self._main, self._number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        verdict, self._due = self._due, None
        now_s = self._clock()
        if now_s - self._sent_s > PROMPT_S:
            self._back_s = now_s
            return
        if verdict is None:  # it was withdrawn
            return
        if sys.exc_info()[0] is not None:
            return  # it may be saving because its peers have gone
        if _is_ours(frame):
            return  # with the next pulse it will be elsewhere
        self._raised.add(verdict.incident)
        self._raised_at_step = self._step
        raise HangError(verdict)


def _is_ours(frame: FrameType | None) -> bool:
    """Whether code of ncclwatch is under way, or what it calls of the standard library."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in sys.stdlib_module_names:
            return package == "ncclwatch"
        frame = frame.f_back
    return False


def unused_signal() -> int:
    """Return a signal of real time whose default handler is in force, 0 if there is none."""
    # From the middle: glibc's own come first, and what counts down from the last one is somebody else's.
    middle = (signal.SIGRTMIN + signal.SIGRTMAX) // 2
    for number in range(middle, signal.SIGRTMAX):
        if signal.getsignal(number) is signal.SIG_DFL:
            return number
    return 0
