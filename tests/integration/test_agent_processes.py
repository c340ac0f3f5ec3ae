"""What the agent sees of real processes: at work, still, stopped, killed, reaped, and not ours at all."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import ProcessState
from ncclwatch_agent.process.procfs import parse_stat
from ncclwatch_agent.process.rank_process import MEASURE_S, ProcessWatch

pytestmark = pytest.mark.integration

READ = "import sys; print('ready', flush=True); sys.stdin.readline()"
SPIN = "print('ready', flush=True)\nwhile True: pass"
# The child asks the kernel to be killed when its parent is: a test may end the parent with SIGKILL.
PARENT = f"""
import ctypes, subprocess, sys
child = subprocess.Popen(
    [sys.executable, '-c', sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    preexec_fn=lambda: ctypes.CDLL(None).prctl(1, 9),
)
child.stdout.readline()
{READ}
child.kill()
"""
WRITE = """
import sys
print('ready', flush=True)
with open('/dev/null', 'wb') as sink:
    for line in sys.stdin:
        sink.write(bytes(int(line)))
        sink.flush()
        print('done', flush=True)
"""
THREAD = """
import threading, sys
def spin():
    print(threading.get_native_id(), flush=True)
    while True: pass
threading.Thread(target=spin, daemon=True).start()
sys.stdin.readline()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python programs that say "ready", and end them."""
    started: list[subprocess.Popen[str]] = []

    def begin(source: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", source, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def started_at(pid: int) -> int:
    """Return the start time of a process in clock ticks."""
    stat = parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    assert stat is not None
    return stat.start_ticks


@contextlib.contextmanager
def watching(process: "subprocess.Popen[str]") -> Iterator[ProcessWatch]:
    """Watch a process that has said it is ready."""
    assert process.stdout is not None
    process.stdout.readline()
    watch = ProcessWatch(process.pid, started_at(process.pid))
    yield watch
    watch.close()


def observe_over(watch: ProcessWatch, tids: tuple[int, ...] = ()) -> int:
    """Look at a process over one interval of measurement; returns the time of the last look."""
    watch.observe(time.monotonic_ns(), tids)
    select.select([], [], [], MEASURE_S + 0.05)
    now_ns = time.monotonic_ns()
    watch.observe(now_ns, tids)
    return now_ns


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that a signal brings about in another process, without a bound on luck."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_process_that_waits_is_still_and_one_that_computes_is_not(start: Start) -> None:
    with watching(start(READ)) as waits, watching(start(SPIN)) as spins:
        spins.observe(time.monotonic_ns())
        now_ns = observe_over(waits)
        spins.observe(now_ns)
        assert waits.view(now_ns).cpu_still_s > 0.9
        assert waits.view(now_ns).io_still_s > 0.9
        assert waits.view(now_ns).state is ProcessState.SLEEPING
        assert spins.view(now_ns).cpu_still_s == 0
        assert waits.view(now_ns).in_kernel.startswith("read")


def test_work_of_children_counts_as_work_of_the_process(start: Start) -> None:
    with watching(start(PARENT, SPIN)) as watch:
        now_ns = observe_over(watch)
        assert watch.view(now_ns).cpu_still_s == 0
    with watching(start(PARENT, READ)) as watch:
        now_ns = observe_over(watch)
        assert watch.view(now_ns).cpu_still_s > 0.9


def test_bytes_written_are_progress_but_a_line_of_a_log_is_not(start: Start) -> None:
    process = start(WRITE)
    with watching(process) as watch:
        assert process.stdin is not None and process.stdout is not None
        watch.observe(time.monotonic_ns())
        for written, is_still in ((100, True), (1_000_000, False)):
            process.stdin.write(f"{written}\n")
            process.stdin.flush()
            process.stdout.readline()
            now_ns = observe_over(watch)
            assert (watch.view(now_ns).io_still_s > 0) is is_still


def test_each_thread_is_measured_for_itself(start: Start) -> None:
    process = start(THREAD)
    assert process.stdout is not None
    busy = int(process.stdout.readline())
    watch = ProcessWatch(process.pid, started_at(process.pid))
    now_ns = observe_over(watch, (process.pid, busy, 1))
    assert watch.thread_still_s(process.pid, now_ns) > 0.9
    assert watch.thread_still_s(busy, now_ns) == 0
    assert [watch.thread_alive(tid) for tid in (process.pid, busy, 1)] == [True, True, False]
    assert "read" in watch.in_kernel(process.pid)
    watch.close()


def test_a_stopped_process_is_seen_as_stopped(start: Start) -> None:
    process = start(READ)
    with watching(process) as watch:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert watch.observe(time.monotonic_ns()) is ProcessState.STOPPED
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: watch.observe(time.monotonic_ns()) is ProcessState.SLEEPING)


ENDS = [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("os.abort()", -6)]


@pytest.mark.parametrize(("end", "code"), ENDS)
def test_how_a_process_ended_is_read_from_its_zombie(start: Start, end: str, code: int) -> None:
    process = start(f"import os\n{READ}\n{end}")
    with watching(process) as watch:
        watch.observe(time.monotonic_ns())
        assert watch.exit_status() is None
        assert process.stdin is not None
        process.stdin.close()
        select.select([watch.pidfd.fd], [], [])
        assert watch.observe(time.monotonic_ns()) is ProcessState.ZOMBIE
        status = watch.exit_status()
        assert status is not None
        assert os.waitstatus_to_exitcode(status) == code


def test_how_a_process_ended_is_known_after_it_was_reaped_where_the_kernel_tells(start: Start) -> None:
    process = start(READ + "\nsys.exit(3)")
    with watching(process) as watch:
        watch.observe(time.monotonic_ns())
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        assert watch.observe(time.monotonic_ns()) is ProcessState.GONE
        assert watch.exit_status() in (3 << 8, None)  # None before Linux 6.15


def test_another_process_with_the_pid_of_a_rank_is_not_the_rank(start: Start) -> None:
    process = start(READ)
    with watching(process):
        impostor = ProcessWatch(process.pid, started_at(process.pid) - 1)
        assert impostor.observe(time.monotonic_ns()) is ProcessState.GONE
        process.kill()
        process.wait()
        assert impostor.exit_status() is None
        impostor.close()
