"""A process whose threads ask somebody is told from one whose threads only wait for work, by a real process."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from ncclwatch_agent.process.answers import Pauses, awaits_answer, awaits_children
from ncclwatch_agent.process.procfs import descendants, kernel_place, read_text
from tests.unit.agent.process import children

READY_S = 20.0
SETUP = """
import queue, select, socket, sys, threading
one, other = socket.socketpair(); served = socket.create_server(("127.0.0.1", 0))
tcp = socket.create_connection(served.getsockname())
def start(target, *arguments): threading.Thread(target=target, args=arguments, daemon=True).start()
"""
ASKING = {
    "receive": "start(one.recv, 10)",
    "read": "start(lambda: __import__('os').read(tcp.fileno(), 10))",
    "timeout": "tcp.settimeout(500); start(tcp.recv, 10)",
}
IDLE = {
    "queue": "start(queue.Queue().get)",
    "accept": "start(served.accept)",
    "server": "start(__import__('http.server').server.HTTPServer(('127.0.0.1', 0), None).serve_forever)",
    "select": "start(select.select, [one, tcp], [], [])",
    "pipe": "start(lambda: __import__('os').read(__import__('os').pipe()[0], 10))",
    "nobody": "pass",
}


FOR_CHILDREN = {
    "command": "start(subprocess.run, ['sleep', '1000'])",
    "output": "start(lambda: subprocess.run(['sleep', '1000'], capture_output=True))",
    "pool": "multiprocessing.get_context('fork').Pool(1).map_async(time.sleep, [1000])",
    "executor": "concurrent.futures.ProcessPoolExecutor(1).submit(time.sleep, 1000)",
}


@pytest.fixture
def child() -> Iterator["Child"]:
    """Give a process whose main thread waits, and whose second thread can be told to."""
    made = Child()
    yield made
    made.end()


class Child(children.Child):
    """A Python process of two threads."""

    def with_thread(self, line: str) -> int:
        """Start it, and return its pid when it is ready."""
        return self.start(f"{SETUP}\n{line}\nprint('ready', flush=True); threading.Event().wait()")


def is_seen(pid: int) -> bool:
    """Return whether a thread is seen to ask, as soon as it does."""
    end = time.monotonic() + READY_S
    while not awaits_answer(pid) and time.monotonic() < end:
        pass
    return awaits_answer(pid)


@pytest.mark.parametrize("line", ASKING.values(), ids=ASKING.keys())
def test_a_thread_that_receives_from_a_socket_awaits_an_answer(child: Child, line: str) -> None:
    assert is_seen(child.with_thread(line))


ASKING_POOL = """
import multiprocessing
def ask(number): return tcp.recv(10)
multiprocessing.get_context("fork").Pool(1).map_async(ask, [0])
"""


def test_a_pool_of_processes_that_receive_from_a_socket_awaits_an_answer(child: Child) -> None:
    pid = child.with_thread(ASKING_POOL)
    end = time.monotonic() + READY_S
    while not awaits_answer(pid, descendants(pid, 9)) and time.monotonic() < end:
        pass
    assert awaits_answer(pid, descendants(pid, 9))
    assert not awaits_answer(pid)


@pytest.mark.parametrize("line", IDLE.values(), ids=IDLE.keys())
def test_a_thread_that_waits_for_work_awaits_no_answer(child: Child, line: str) -> None:
    assert not any(awaits_answer(pid) for pid in [child.with_thread(line)] * 50)


@pytest.mark.parametrize("line", FOR_CHILDREN.values(), ids=FOR_CHILDREN.keys())
def test_a_thread_that_waits_for_a_process_or_for_what_it_writes_is_seen(child: Child, line: str) -> None:
    pid = child.with_thread(f"import concurrent.futures, multiprocessing, subprocess, time\n{line}")
    end = time.monotonic() + READY_S
    while not awaits_children(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert awaits_children(pid)


@pytest.mark.parametrize("name", sorted(IDLE.keys() - {"pipe"}))
def test_a_thread_that_waits_for_work_waits_for_no_process(child: Child, name: str) -> None:
    assert not awaits_children(child.with_thread(IDLE[name]))


def test_a_thread_between_two_tries_is_seen_to_pause_until_the_end_of_its_sleep(child: Child) -> None:
    pauses, ends = Pauses(child.with_thread("start(__import__('time').sleep, 4)")), time.monotonic() + READY_S
    while not pauses.look(time.monotonic()) and time.monotonic() < ends:
        pass
    (before,) = pauses._sleeps.values()
    while pauses._sleeps and pauses.look(time.monotonic()):
        ends = time.monotonic()
    assert ends == pytest.approx(before[0], abs=0.5)


def test_a_thread_that_looks_for_work_every_second_does_not_pause(child: Child) -> None:
    line = "start(lambda: [__import__('time').sleep(1) for _ in range(1000)])"
    pauses, ends = Pauses(child.with_thread(line)), time.monotonic() + 2.0
    looks = []
    while time.monotonic() < ends:
        looks.append(pauses.look(time.monotonic()))
    assert not any(looks)


CHILD = """
import os, socket, sys, time
one, other = socket.socketpair(); out, into = os.pipe()
child = os.fork()
if not child:
    {line}
print("ready", flush=True)
os.read(out, 1)
"""


@pytest.mark.parametrize(("line", "asks"), [("one.recv(10)", True), ("os.read(os.pipe()[0], 1)", False)])
def test_a_child_process_that_receives_from_a_socket_counts_where_its_parent_may_wait_for_it(
    child: Child, line: str, asks: bool
) -> None:
    pid = child.start(CHILD.format(line=line))
    (started,) = descendants(pid, 1)
    end = time.monotonic() + READY_S
    while not all(in_the_kernel(each) for each in (pid, started)) and time.monotonic() < end:
        pass
    assert awaits_answer(pid, (started,)) is asks
    assert not awaits_answer(pid)
    os.kill(started, signal.SIGKILL)


def in_the_kernel(pid: int) -> bool:
    place = kernel_place(read_text(f"/proc/{pid}/syscall"), read_text(f"/proc/{pid}/wchan"))
    return place.startswith(("read", "recvfrom"))


def test_of_a_process_that_is_gone_nothing_is_said() -> None:
    assert not awaits_answer(2**22 + 1)
