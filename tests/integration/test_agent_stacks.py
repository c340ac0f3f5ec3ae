"""Stacks of real processes through py-spy, and every way in which there are none."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import ProcessState, StackDump
from ncclwatch_agent.process.procfs import state_of
from ncclwatch_agent.process.rank_process import ProcessWatch
from ncclwatch_agent.stacks.deep_stacks import deepen
from ncclwatch_agent.stacks.py_spy import DUMP_BYTES_MAX, StackDesk

pytestmark = pytest.mark.integration

PROGRAM = """
import sys
def inner():
    print('ready', flush=True)
    sys.stdin.readline()
def outer():
    inner()
outer()
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a program that sits in inner(), called by outer()."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    # It says that it is ready one line before it waits: on a busy machine a look, or a stop, may come between.
    deadline = time.monotonic() + 30.0
    while "pipe" not in Path(f"/proc/{process.pid}/wchan").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield process
    process.kill()
    process.communicate()


def fake(tmp_path: Path, body: str) -> str:
    """Return the path of a program that stands in for py-spy."""
    path = tmp_path / "py-spy"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize("stopped", [False, True])
def test_the_stack_of_a_process_is_read_also_while_it_is_stopped(
    target: "subprocess.Popen[str]", stopped: bool
) -> None:
    if stopped:
        os.kill(target.pid, signal.SIGSTOP)
        os.waitpid(target.pid, os.WUNTRACED)
    found = asyncio.run(StackDesk().dump(3, target.pid))
    assert found.failure == ""
    ((name, frames),) = found.threads
    assert (found.rank, name) == (3, "MainThread")
    assert [frame.function for frame in frames] == ["inner", "outer", "<module>"]
    assert frames[0].file.endswith("program.py") and frames[0].line == 5


def test_without_py_spy_it_says_how_to_get_it() -> None:
    assert "-m pip install py-spy" in asyncio.run(StackDesk(py_spy="").dump(0, 1)).failure


def test_a_refusal_says_what_would_allow_it(tmp_path: Path) -> None:
    program = fake(tmp_path, "sys.exit('Error: Permission Denied: Try running again with elevated permissions')")
    failure = asyncio.run(StackDesk(program).dump(0, 4711)).failure
    assert "refused to let py-spy read pid 4711" in failure
    assert "to allow it, " in failure


def test_a_process_that_is_gone_is_a_failure_and_no_crash() -> None:
    failure = asyncio.run(StackDesk().dump(0, 2**22 - 1)).failure
    assert "py-spy could not read pid 4194303" in failure


def test_a_py_spy_that_hangs_is_killed_at_the_deadline(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = fake(tmp_path, f"open({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    began = time.monotonic()
    failure = asyncio.run(StackDesk(program, deadline_s=1.0).dump(0, 1)).failure
    assert "did not answer" in failure
    assert time.monotonic() - began < 10
    assert not Path(f"/proc/{mark.read_text()}").exists()


def test_more_stacks_than_a_message_can_hold_are_refused(tmp_path: Path) -> None:
    program = fake(tmp_path, f"sys.stdout.write('x' * {DUMP_BYTES_MAX * 2})\ntime.sleep(600)")
    assert "larger than" in asyncio.run(StackDesk(program).dump(0, 1)).failure


def test_one_process_is_looked_at_at_a_time(tmp_path: Path) -> None:
    body = """
mark = os.path.dirname(sys.argv[0]) + '/running'
os.mkdir(mark)  # fails if another one runs
print('[]')
os.rmdir(mark)
"""
    desk = StackDesk(fake(tmp_path, body))

    async def dump_three() -> list[str]:
        return [dump.failure for dump in await asyncio.gather(*(desk.dump(rank, 1) for rank in range(3)))]

    assert asyncio.run(dump_three()) == ["", "", ""]


PARENT = """
import multiprocessing, sys, threading
def read_sample():
    print('ready', flush=True)
    threading.Event().wait()
def idle(pipe):
    pipe.send('up')
    pipe.recv()
def ask_child():
    context = multiprocessing.get_context('fork')
    near, far = context.Pipe()
    sleeper = context.Process(target=idle, args=(far,), daemon=True)
    sleeper.start()
    near.recv()  # a child that is still being forked stands in its parent's frames
    child = context.Process(target=read_sample, daemon=True)
    child.start()
    child.join()
ask_child()
"""


def closer(pid: int, *, native: bool) -> StackDump:
    """Return a dump of a process with all that a closer look shows."""

    async def look() -> StackDump:
        desk = StackDesk()
        return await deepen(desk, await desk.dump(0, pid), pid, native=native)

    return asyncio.run(look())


def test_of_a_rank_that_waits_for_a_child_its_children_are_told_the_busy_one_first(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        until_children_stand = time.monotonic() + 30
        while len((found := closer(process.pid, native=False)).children) < 2:
            assert time.monotonic() < until_children_stand, found
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    functions = [[frame.function for frame in child.frames] for child in found.children]
    assert "read_sample" in functions[0] or "idle" in functions[0]
    assert not any("ask_child" in names for names in functions)  # the parent's own, below those of a forked child
    assert found.native == ()


def test_native_frames_are_read_of_a_process_that_then_runs_on(target: "subprocess.Popen[str]") -> None:
    found = closer(target.pid, native=True)
    if not found.native:
        pytest.skip(
            f"py-spy may not halt processes here: {asyncio.run(StackDesk().dump_native(0, target.pid)).failure}"
        )
    names = [frame.function for frame in found.native]
    assert names.index("inner") > 0  # something native is inside of it
    assert [frame.function for frame in found.threads[0][1]] == ["inner", "outer", "<module>"]
    assert target.stdin is not None
    target.stdin.write("\n")
    target.stdin.flush()
    assert target.wait(timeout=30) == 0


def test_a_stopped_process_is_not_asked_for_native_frames_and_stays_stopped(target: "subprocess.Popen[str]") -> None:
    os.kill(target.pid, signal.SIGSTOP)
    os.waitpid(target.pid, os.WUNTRACED)
    found = closer(target.pid, native=True)
    assert (found.native, found.failure) == ((), "")
    assert Path(f"/proc/{target.pid}/stat").read_text().split()[2] == "T"


def test_a_process_that_a_killed_tracer_left_stopped_runs_on(target: "subprocess.Popen[str]", tmp_path: Path) -> None:
    # Stands in for a py-spy that halts its target and is killed at the deadline.
    stopping = fake(tmp_path, "os.kill(int(sys.argv[-1]), 19) if '--native' in sys.argv else None\ntime.sleep(600)")
    desk = StackDesk(stopping, deadline_s=1.0, native_s_max=1.0)
    asyncio.run(desk.dump_native(0, target.pid))
    assert Path(f"/proc/{target.pid}/stat").read_text().split()[2] == "S"


def test_a_process_that_the_agent_halts_itself_is_never_told_as_stopped(
    target: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    halting = fake(tmp_path, "os.kill(int(sys.argv[-1]), 19) if '--native' in sys.argv else None\ntime.sleep(600)")
    start_ticks = int(Path(f"/proc/{target.pid}/stat").read_text().split()[21])
    watch, kernel, told = ProcessWatch(target.pid, start_ticks), set(), set()

    async def look() -> None:
        dump = asyncio.ensure_future(StackDesk(halting, deadline_s=3.0, native_s_max=3.0).dump_native(0, target.pid))
        while not dump.done():
            before = state_of(target.pid)
            if before is state_of(target.pid):
                kernel.add(before)
                told.add(watch.observe(time.monotonic_ns()))
            await asyncio.sleep(0.02)

    asyncio.run(look())
    assert ProcessState.STOPPED in kernel
    assert told <= {ProcessState.SLEEPING, ProcessState.RUNNING}  # it runs for a moment when it is let go
    os.kill(target.pid, signal.SIGSTOP)
    os.waitpid(target.pid, os.WUNTRACED)
    assert watch.observe(time.monotonic_ns()) is ProcessState.STOPPED
