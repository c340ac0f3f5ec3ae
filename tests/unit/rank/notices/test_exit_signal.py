"""A rank that is the first process of its container can be ended from inside it."""

import subprocess
import sys

import pytest

from ncclwatch.rank.notices import exit_signal

# It pretends to be PID 1, and sleeps with the GIL held: a handler in Python would never run.
FIRST = """
import ctypes, os
from ncclwatch.rank.notices import exit_signal
os.getpid = lambda: 1
print(exit_signal.install("policy"), flush=True)
{then}
ctypes.PyDLL(None).sleep(600)
"""


def first(then: str = "") -> "tuple[subprocess.Popen[str], int]":
    process = subprocess.Popen([sys.executable, "-c", FIRST.format(then=then)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_it_ends_a_process_whose_native_code_holds_the_gil() -> None:
    process, number = first()
    with process:
        process.send_signal(number)
        assert process.wait(60) == number


def test_without_it_the_signal_has_its_default_again() -> None:
    process, number = first("exit_signal.remove(); print(flush=True)")
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(60) == -number


@pytest.mark.parametrize("on_hang", ["", "report", "capture", "raise"])
def test_no_signal_is_used_where_nothing_may_be_ended(monkeypatch: pytest.MonkeyPatch, on_hang: str) -> None:
    monkeypatch.setattr(exit_signal.os, "getpid", lambda: 1)
    assert exit_signal.install(on_hang) == 0


def test_no_signal_is_used_where_sigkill_ends_the_process() -> None:
    assert exit_signal.install("policy") == 0
