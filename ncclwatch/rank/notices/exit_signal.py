"""Lets the node's agent end a rank that is the first process of its container.

From processes of its own PID namespace, PID 1 gets only the signals that it handles, and no SIGKILL
(pid_namespaces(7)). An agent beside it could not end it. So it handles one more signal, with `_exit` of libc: that
runs whatever its threads do, also where native code holds the GIL. The exit code is the number of the signal.
"""

import ctypes
import os
import signal

from ncclwatch.contract.on_hang.ways import ENDING
from ncclwatch.rank.notices.raising import unused_signal

_installed = 0


def install(on_hang: str) -> int:
    """Let one signal end this process. Returns its number, 0 if SIGKILL ends it or the owner asks for no end."""
    global _installed
    if os.getpid() != 1 or on_hang not in ENDING:
        return 0
    if not _installed:
        _installed = unused_signal()
        if _installed:
            libc = ctypes.CDLL(None)
            _handle(libc, _installed, ctypes.cast(libc._exit, ctypes.c_void_p))
    return _installed


def remove() -> None:
    """Discard that signal again."""
    global _installed
    if _installed:
        _handle(ctypes.CDLL(None), _installed, ctypes.c_void_p(int(signal.SIG_DFL)))
        _installed = 0


def _handle(libc: ctypes.CDLL, number: int, handler: ctypes.c_void_p) -> None:
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(number, handler)
