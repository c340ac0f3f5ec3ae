"""What a process does to answer us is no sign that it works, and what has become of those that it started is seen."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch_agent.process import rank_process
from ncclwatch_agent.process.file_locks import lock_wait
from ncclwatch_agent.process.procfs import parse_stat
from ncclwatch_agent.process.rank_process import CHILDREN_EVERY, ProcessWatch

SECOND_NS = 1_000_000_000


@pytest.fixture
def watch() -> Iterator[ProcessWatch]:
    """Give a watch of this very process that has seen it stand still for a second; its time is made up."""
    with open("/proc/self/stat", "rb") as file:
        stat = parse_stat(file.read())
    assert stat is not None
    found = ProcessWatch(os.getpid(), stat.start_ticks)
    found.observe(SECOND_NS)
    yield found
    found.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that this one has started."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def trouble_of_children(watch: ProcessWatch) -> tuple[int, int, int]:
    for _ in range(CHILDREN_EVERY):  # new ones are looked for now and then
        watch.observe(SECOND_NS)
    view = watch.view(SECOND_NS)
    return view.stopped_child, view.killed_child, view.killed_by


def work() -> None:
    """Use clearly more CPU than counts as none."""
    began = time.process_time()
    while time.process_time() - began < 0.15:
        pass


def still_s(watch: ProcessWatch, second: int) -> float:
    watch.observe(second * SECOND_NS)
    return watch.view(second * SECOND_NS).cpu_still_s


def test_the_work_of_a_child_that_came_and_went_between_two_looks_is_seen(watch: ProcessWatch) -> None:
    assert still_s(watch, 2) > 0
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert still_s(watch, 3) == 0


def test_the_work_of_one_of_very_many_children_is_seen(watch: ProcessWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of a process for each core maps a dataset, and the last one has the longest part."""
    monkeypatch.setattr(rank_process, "CHILDREN_MAX", 2)
    reads, begins = os.pipe()
    works = f"import os, time\nos.read({reads}, 1)\nwhile time.process_time() < 0.6: pass\ntime.sleep(60)"
    with contextlib.ExitStack() as stack:
        pool = [stack.enter_context(subprocess.Popen(["sleep", "60"])) for _ in range(3)]
        last = stack.enter_context(subprocess.Popen([sys.executable, "-c", works], pass_fds=(reads,)))
        for process in (*pool, last):
            stack.callback(process.kill)
        second = 2
        while last.pid not in watch._others or watch._others[last.pid] < 0:
            watch.observe(second * SECOND_NS)
            second += 1
        while not still_s(watch, second):  # it is starting
            second += 1
            time.sleep(0.02)
        os.write(begins, b".")
        spent = watch._others[last.pid]
        while _ticks(last.pid) < spent + 30:  # more than a burst
            time.sleep(0.01)
        assert still_s(watch, second + 1) == 0
    os.close(reads)
    os.close(begins)


def _ticks(pid: int) -> int:
    stat = parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    assert stat is not None
    return stat.cpu_ticks


def test_threads_that_come_and_go_cost_no_descriptors(watch: ProcessWatch) -> None:
    """A job may start a thread for each checkpoint, for weeks."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        watch.observe(SECOND_NS, (os.getpid(), thread.native_id or 0))
        assert watch.thread_alive(thread.native_id or 0)
        stop.set()
        thread.join()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2  # the main thread and the last one


def test_the_number_of_a_thread_that_has_ended_may_be_that_of_a_new_one(watch: ProcessWatch) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    tid = thread.native_id or 0
    watch.observe(SECOND_NS, (tid,))
    watch._threads[tid].alive = False  # as of one that had the number before
    watch.observe(2 * SECOND_NS, (tid,))
    assert watch.thread_alive(tid)
    stop.set()
    thread.join()
    watch.observe(3 * SECOND_NS, (tid,))
    assert not watch.thread_alive(tid)


def test_work_is_seen(watch: ProcessWatch) -> None:
    work()
    assert still_s(watch, 2) == 0.0


def test_answering_is_overlooked_also_by_a_look_in_the_middle(watch: ProcessWatch) -> None:
    with watch.overlooking():
        work()
        middle = still_s(watch, 2)
        work()
    assert (middle, still_s(watch, 3)) == (1.0, 2.0)


def test_what_was_done_before_we_asked_still_counts(watch: ProcessWatch) -> None:
    work()
    with watch.overlooking():
        pass
    assert still_s(watch, 2) == 0.0


def test_after_the_answer_work_is_seen_again(watch: ProcessWatch) -> None:
    with watch.overlooking():
        pass
    work()
    assert still_s(watch, 2) == 0.0


def test_a_child_that_runs_is_in_no_trouble(watch: ProcessWatch, child: subprocess.Popen[bytes]) -> None:
    assert child.poll() is None
    assert trouble_of_children(watch) == (0, 0, 0)


def test_a_child_that_was_stopped_is_seen(watch: ProcessWatch, child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert trouble_of_children(watch) == (child.pid, 0, 0)


def test_a_child_that_was_killed_is_seen_until_it_is_waited_for(
    watch: ProcessWatch, child: subprocess.Popen[bytes]
) -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert trouble_of_children(watch) == (0, child.pid, signal.SIGKILL)


def test_a_child_that_ended_by_itself_is_in_no_trouble(watch: ProcessWatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert trouble_of_children(watch) == (0, 0, 0)


WAITS = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
BURNS = f"{WAITS}; print('has it', flush=True)\nwhile True: pass"


def waiter_of(path: Path) -> tuple[subprocess.Popen[bytes], ProcessWatch]:
    """Start a process that waits for a lock, and a watch that has seen it wait for a second."""
    process = subprocess.Popen([sys.executable, "-c", WAITS, str(path)])
    stat = parse_stat(Path(f"/proc/{process.pid}/stat").read_bytes())
    assert stat is not None
    watch = ProcessWatch(process.pid, stat.start_ticks)
    end = time.monotonic() + 20.0
    while lock_wait(process.pid) is None and time.monotonic() < end:
        time.sleep(0.01)
    watch.observe(SECOND_NS)
    assert watch.view(SECOND_NS).lock_holder
    return process, watch


def test_the_work_of_who_holds_a_lock_is_that_of_who_waits_for_it(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process, watch = waiter_of(tmp_path / "lock")
        assert still_s(watch, 2) == 1.0
        work()
        assert still_s(watch, 3) == 0.0
        process.kill()
        process.wait()
        watch.close()


def test_the_work_of_another_rank_that_holds_a_lock_is_its_own(tmp_path: Path) -> None:
    """Ranks of one node have one parent."""
    burns = [sys.executable, "-c", BURNS, str(tmp_path / "lock")]
    with subprocess.Popen(burns, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        process, watch = waiter_of(tmp_path / "lock")
        time.sleep(0.3)
        assert still_s(watch, 2) == 1.0
        process.kill()
        process.wait()
        watch.close()
        holder.kill()
