"""Raises `HangError` in the main thread of this rank, if that thread runs Python or waits in Python.

It uses an unused real-time signal: the handler runs in the main thread even while that sleeps or waits for a lock, a
queue, a pipe or a socket. PyThreadState_SetAsyncExc would take effect only after the wait, perhaps in a job that goes
on. Neither interrupts native code, such as gloo's wait for its peers. When the handler runs only after such a wait,
the job may be going on: it raises nothing, and the signal is sent again if the hang is still open a while later.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from ncclwatch.contract.on_hang.hang_error import HangError
from ncclwatch.contract.on_hang.notice import HangVerdict, Notice

PROMPT_S = 1.0  # a handler that runs later than this was delayed by native code
SETTLE_S = 3.0  # how long a hang must stay open after the main thread returned from native code
SENT_S = 1.0  # limit, because in a child forked while the lock was held it is never released
_NEVER = float("-inf")


class Raiser:
    """Raises in the main thread, where it must be created. Call `consider` with each pulse."""

    def __init__(self, number: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Install the handler for a signal from `unused_signal`. Raises ValueError in any thread but the main one."""
        self._clock = clock
        self._number = number
        self._main = threading.main_thread().ident or 0
        self._due: HangVerdict | None = None
        self._sent_s = 0.0
        self._back_s = _NEVER  # when the main thread last returned from native code
        self._raised: set[str] = set()  # incidents
        self._raised_at_step = -1  # of the newest; -1: none
        self._step = 0
        self._sending = threading.Lock()
        self._closed = False
        self._before = signal.signal(number, self._handle)

    def close(self) -> None:
        """Raise nothing from now on, and restore the former handler if this is the main thread."""
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

    def consider(self, notice: Notice | None, *, blocked: bool, step: int) -> None:
        """Send the signal if it is due.

        `blocked`: the main thread is inside an operation that only its peers can end, and cannot be reached.
        `step`: training steps finished. A script that has caught the exception may be saving: nothing else is raised
        until it finishes another step.
        """
        verdict = notice.to_raise if notice is not None else None
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
            return  # it may be saving because its peers are gone
        if _is_ours(frame):
            return  # the next pulse tries again
        self._raised.add(verdict.incident)
        self._raised_at_step = self._step
        raise HangError(verdict)


def _is_ours(frame: FrameType | None) -> bool:
    """Whether ncclwatch is running, or the standard library called by it."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in sys.stdlib_module_names:
            return package == "ncclwatch"
        frame = frame.f_back
    return False


def unused_signal() -> int:
    """Return a real-time signal without a handler, 0 if there is none."""
    # From the middle up: glibc uses the first ones, and applications often count down from SIGRTMAX.
    middle = (signal.SIGRTMIN + signal.SIGRTMAX) // 2
    for number in range(middle, signal.SIGRTMAX):
        if signal.getsignal(number) is signal.SIG_DFL:
            return number
    return 0
