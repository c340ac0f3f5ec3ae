"""The end of a wait is read from the arguments of the call, of a real process."""

import os
import signal
from collections.abc import Iterator

import pytest

from ncclwatch.contract.model.rank import OF_STANDARD_INPUT
from ncclwatch_agent.process.procfs import descendants, kernel_place, parse_stat, read_text
from ncclwatch_agent.process.rank_process import ProcessWatch
from ncclwatch_agent.process.timed_waits import parse, timed_wait
from tests.unit.agent.process import children

# Says that it is about to wait. The system calls of a machine have other names on another one: what they end by counts.
WAITS = {
    "sleep": "time.sleep(500)",
    "poll": "p = select.poll(); p.register(0); p.poll(500_000)",
    "select": "select.select([0], [], [], 500)",
    "epoll": "e = select.epoll(); e.register(0); e.poll(500)",
    "lock": "t = threading.Event(); t.wait(500)",
    "nanosleep": "ctypes.CDLL(None).sleep(500)",
}
WAITS_FOR_ITS_CHILD = (
    "import os, time; child = os.fork(); child or time.sleep(500); print('ready', flush=True); os.waitpid(child, 0)"
)
ENDLESS = {"read": "sys.stdin.read()", "event": "threading.Event().wait()", "poll": "select.select([0], [], [])"}


@pytest.fixture
def child() -> Iterator["Child"]:
    """Give a process that can be told to wait."""
    made = Child()
    yield made
    made.end()


class Child(children.Child):
    """A Python process that waits in one call."""

    def wait_in(self, line: str) -> int:
        """Start it, and return its pid when it sits in the kernel."""
        pid = self.start(f"import ctypes, select, sys, threading, time; print('ready', flush=True); {line}")
        place = ""
        while not place.strip() or place.startswith("write"):
            place = place_of(pid)
        return pid


def place_of(pid: int) -> str:
    return kernel_place(*(read_text(f"/proc/{pid}/{name}") for name in ("syscall", "wchan")))


@pytest.fixture
def parent() -> Iterator[int]:
    """Give a process that waits for one that it has started, and that sleeps."""
    made = Child()
    pid = made.start(WAITS_FOR_ITS_CHILD)
    (started,) = descendants(pid, 1)
    while "nanosleep" not in place_of(started) or not place_of(pid).startswith("wait"):
        pass
    yield pid
    os.kill(started, signal.SIGKILL)
    made.end()


@pytest.mark.parametrize("line", WAITS.values(), ids=WAITS.keys())
def test_a_wait_with_a_deadline_tells_when_it_ends(child: Child, line: str) -> None:
    found = timed_wait(child.wait_in(line), 0.0)
    assert found is not None and 400 < found.left_s <= 500 and 400 < found.whole_s <= 500


@pytest.mark.parametrize("line", ["sys.stdin.read()", "select.select([0], [], [])"])
def test_who_waits_for_standard_input_is_seen_to(child: Child, line: str) -> None:
    assert OF_STANDARD_INPUT in place_of(child.wait_in(line))


def test_who_reads_something_else_does_not_wait_for_standard_input(child: Child) -> None:
    place = place_of(child.wait_in("import os; os.read(os.pipe()[0], 1)"))
    assert place.startswith("read") and OF_STANDARD_INPUT not in place


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


def test_the_sleep_of_a_started_process_has_lasted_for_as_long_as_it_has_rested(parent: int) -> None:
    stat = parse_stat(read_text(f"/proc/{parent}/stat").encode())
    assert stat is not None
    watch = ProcessWatch(parent, stat.start_ticks)
    for second in (1, 2, 3, 102):
        watch.observe(second * 1_000_000_000)
    timed = watch.view(102 * 1_000_000_000).timed
    watch.close()
    assert timed is not None and timed.child and 400 < timed.left_s <= 500 < timed.whole_s <= 600
