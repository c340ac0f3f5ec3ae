"""Our own threads take no signal that the program has blocked for itself."""

import signal
import subprocess
import sys
import threading

import pytest

from ncclwatch.contract.machine import quiet_threads


def _mask() -> set[signal.Signals]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())


PROGRAM = """
import os, signal, threading
from ncclwatch.contract.machine import quiet_threads

quiet_threads.start(threading.Thread(target=threading.Event().wait, daemon=True))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait({signal.SIGUSR1}).name)
"""


def test_a_signal_that_the_program_blocks_later_waits_for_it_and_is_not_given_to_our_thread():
    """In a process of its own, where no other thread is: one that took the signal would end it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "SIGUSR1\n")


def test_our_thread_keeps_the_signals_of_its_own_faults():
    seen: list[set[signal.Signals]] = []
    thread = threading.Thread(target=lambda: seen.append(_mask()))
    quiet_threads.start(thread)
    thread.join()
    assert signal.SIGTERM in seen[0]
    assert signal.SIGSEGV not in seen[0]


def test_whoever_starts_it_keeps_their_own_signals_also_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch):
    thread = threading.Thread(target=print)

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(thread, "start", refuse)
    before = _mask()
    with pytest.raises(RuntimeError):
        quiet_threads.start(thread)
    assert _mask() == before
