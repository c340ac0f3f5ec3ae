"""The end of a wait is read from the arguments of the call, of a real process."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from ncclwatch_agent.process.procfs import kernel_place, read_text
from ncclwatch_agent.process.timed_waits import parse, timed_wait

# Says that it is about to wait. The system calls of a machine have other names on another one: what they end by counts.
WAITS = {
    "sleep": "time.sleep(500)",
    "poll": "p = select.poll(); p.register(0); p.poll(500_000)",
    "select": "select.select([0], [], [], 500)",
    "epoll": "e = select.epoll(); e.register(0); e.poll(500)",
    "lock": "t = threading.Event(); t.wait(500)",
    "nanosleep": "ctypes.CDLL(None).sleep(500)",
}
ENDLESS = {"read": "sys.stdin.read()", "event": "threading.Event().wait()", "poll": "select.select([0], [], [])"}


@pytest.fixture
def child() -> Iterator["Child"]:
    """Give a process that can be told to wait."""
    made = Child()
    yield made
    made.end()


class Child:
    """A Python process that waits in one call."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def wait_in(self, line: str) -> int:
        """Start it, and return its pid when it sits in the kernel."""
        text = f"import ctypes, select, sys, threading, time; print('ready', flush=True); {line}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        place = ""
        while not place.strip() or place.startswith("write"):
            place = kernel_place(*(read_text(f"/proc/{self.process.pid}/{name}") for name in ("syscall", "wchan")))
        return self.process.pid

    def end(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@pytest.mark.parametrize("line", WAITS.values(), ids=WAITS.keys())
def test_a_wait_with_a_deadline_tells_when_it_ends(child: Child, line: str) -> None:
    found = timed_wait(child.wait_in(line), 0.0)
    assert found is not None and 400 < found.left_s <= 500 and 400 < found.whole_s <= 500


@pytest.mark.parametrize(("line", "asleep"), [(WAITS["sleep"], True), (WAITS["poll"], False), (WAITS["lock"], False)])
def test_a_sleep_waits_for_nothing_but_the_time(child: Child, line: str, asleep: bool) -> None:
    found = timed_wait(child.wait_in(line), 0.0)
    assert found is not None and found.asleep is asleep


@pytest.mark.parametrize("line", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_wait_without_a_deadline_tells_none(child: Child, line: str) -> None:
    assert timed_wait(child.wait_in(line), 0.0) is None


def test_what_has_passed_of_a_time_is_not_left(child: Child) -> None:
    found = timed_wait(child.wait_in(WAITS["poll"]), 100.0)
    assert found is not None and (found.left_s, found.whole_s) == (400.0, 500.0)


def test_a_moment_tells_what_is_left_and_the_whole_is_longer_by_what_has_passed(child: Child) -> None:
    found = timed_wait(child.wait_in(WAITS["sleep"]), 100.0)
    assert found is not None and 400 < found.left_s <= 500 < found.whole_s <= 600


@pytest.mark.parametrize("milliseconds", [0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_a_negative_time_is_none(milliseconds: int) -> None:
    assert parse(0, "poll", [0, 1, milliseconds, 0, 0, 0]) is None


def test_a_process_that_is_gone_tells_nothing() -> None:
    assert timed_wait(2**22 + 1, 0.0) is None
