"""Starts threads that the kernel gives no signal to.

A program may block signals and take them with sigwait(), as it does to be told by a batch system that its time is
over. A thread that was started before has them unblocked: it would be given them, and they end the process.
"""

import signal
import threading

# What a thread does to itself must not wait: the kernel would end the process, without its handler.
_OWN_FAULTS = {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
}


def start(thread: threading.Thread) -> None:
    """Start a thread with all signals blocked; it hands that down to what it starts itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OWN_FAULTS)
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
