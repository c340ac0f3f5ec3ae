"""`ncclwatch diagnose` on real processes that never attached.

Each test names its own processes: others on this machine are none of its business.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ncclwatch.contract import job_names
from ncclwatch_agent.diagnose.ranks import find_jobs, read_processes
from tests.integration.launch import PROGRAMS, environment

pytestmark = pytest.mark.integration

COMMAND = "from ncclwatch_agent.diagnose.command import diagnose; diagnose(prog_name='diagnose')"
READY_S = 90.0

WAITING = """
import threading
def wait_for_peers():
    print("ready", flush=True)
    threading.Event().wait()
wait_for_peers()
"""

# Its job, a thread and a function have names that a terminal would obey: the clipboard, a title, a line of its own.
HOSTILE = """
import ctypes, threading
def stand(ready):
    ctypes.CDLL(None).prctl(15, b"\\x1b[2J\\x1b]0;x\\x07\\n#", 0, 0, 0)
    ready.set()
    threading.Event().wait()
evil = stand.__code__.replace(co_name="f\\x1b]0;x\\x07\\nroot# ", co_qualname="f\\x1b]0;x\\x07\\nroot# ") \
    if hasattr(stand.__code__, "co_qualname") else stand.__code__.replace(co_name="f\\x1b]0;x\\x07\\nroot# ")
stand.__code__ = evil
ready = threading.Event()
threading.Thread(target=stand, args=(ready,), name="t\\x1b]52;c;clipboard\\x07\\x9b2J\\r\\nroot# 训练").start()
ready.wait()
print("ready", flush=True)
threading.Event().wait()
"""


def diagnose(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def answer_of(*pids: int) -> tuple[dict[str, Any], int]:
    """Return what it says of the one job of these processes, and its exit code."""
    done = diagnose("--json", *(f"--pid={pid}" for pid in pids))
    (job,) = json.loads(done.stdout)["jobs"]
    return job, done.returncode


def until(pid: int, settled: Callable[[dict[str, Any]], bool]) -> tuple[dict[str, Any], int]:
    """Ask again until the job is where the test wants it: how long torch takes to import is nobody's promise."""
    deadline = time.monotonic() + READY_S
    while True:
        done = diagnose("--json", f"--pid={pid}")
        jobs = json.loads(done.stdout)["jobs"] if done.stdout else []
        if jobs and settled(jobs[0]):
            return jobs[0], done.returncode
        assert time.monotonic() < deadline, done.stdout + done.stderr


@contextmanager
def torchrun(mode: str, runtime: Path, count: int = 3) -> "Iterator[subprocess.Popen[bytes]]":
    """Run the program as a real job; everything it started ends with it."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}",
        str(PROGRAMS / "unattached.py"), mode,
    ]  # fmt: skip
    job = subprocess.Popen(command, env=environment(runtime), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield job
    finally:
        job.terminate()
        job.wait(timeout=60)


@contextmanager
def ranks(count: int, *absent: int, **more: str) -> "Iterator[dict[int, subprocess.Popen[bytes]]]":
    """Start ranks that only wait, but for the absent ones; torch is not needed to be one."""
    started = {}
    for rank in range(count):
        if rank not in absent:
            environ = os.environ | {
                "RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "NCCLWATCH_JOB": f"diagnose-{os.getpid()}",
            }  # fmt: skip
            started[rank] = subprocess.Popen(
                [sys.executable, "-c", WAITING], env=environ | more, stdout=subprocess.PIPE
            )
    try:
        for process in started.values():
            assert process.stdout is not None
            process.stdout.readline()
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def motions(job: dict[str, Any]) -> set[str]:
    return {rank["motion"] for rank in job["ranks"]}


def test_ranks_in_different_calls(tmp_path: Path) -> None:
    with torchrun("different", tmp_path) as launcher:
        job, code = until(launcher.pid, lambda job: motions(job) == {"still"} and len(job["gangs"]) == 2)
    assert code == 1
    assert [(gang["ranks"], gang["place"]["call"], gang["odd"]) for gang in job["gangs"]] == [
        ([2], "barrier", True),
        ([0, 1], "all_reduce", False),
    ]
    assert "they are in different calls" in job["said"][0]


def test_a_rank_in_a_sleep_while_the_others_wait_for_its_gradients(tmp_path: Path) -> None:
    with torchrun("outside", tmp_path) as launcher:
        job, code = until(launcher.pid, lambda job: motions(job) == {"still"} and len(job["gangs"]) == 2)
        text = diagnose("--pid", str(launcher.pid)).stdout
    assert code == 1
    assert job["said"][0].startswith("Rank 2 is at unattached.py:12 in validate(), in no collective")
    assert "If that backward needs rank 2" in job["said"][1]  # native frames told that backward waits
    assert "> time.sleep(3600)" in text
    assert "rank 2 at unattached.py:12 in validate()  (differs from the others)" in text


@pytest.mark.long
def test_a_healthy_job_that_sleeps_between_its_steps_does_not_stand(tmp_path: Path) -> None:
    with torchrun("naps", tmp_path) as launcher:
        until(launcher.pid, lambda job: any(gang["place"]["call"] == "backward" for gang in job["gangs"]))
        job, code = answer_of(launcher.pid)
    assert code == 0
    assert job["said"][0].startswith("No hang is visible: ")


def test_a_stopped_rank_is_named_with_the_command_that_lets_it_go_on() -> None:
    with ranks(3) as started:
        os.kill(started[1].pid, signal.SIGSTOP)
        os.waitpid(started[1].pid, os.WUNTRACED)
        job, code = answer_of(*(process.pid for process in started.values()))
        state = Path(f"/proc/{started[1].pid}/stat").read_text().split()[2]
    assert code == 1
    assert job["said"][0].startswith(f"Rank 1 (pid {started[1].pid}) is stopped (state T)")
    assert f"kill -CONT {started[1].pid}" in job["said"][0]
    assert state == "T"  # nobody has let it go on


def test_ranks_are_found_by_their_environment_and_a_missing_one_is_missed() -> None:
    with ranks(3, 2) as started:
        (job,) = [job for job in find_jobs(read_processes()) if job.job.name == f"diagnose-{os.getpid()}"]
    assert {found.rank: found.pid for found in job.ranks} == {rank: process.pid for rank, process in started.items()}
    assert job.missing == (2,)


def test_ranks_that_stand_outside_a_collective_are_let_run_on_after_their_native_frames_were_read() -> None:
    with ranks(2) as started:
        job, code = answer_of(*(process.pid for process in started.values()))
        states = {Path(f"/proc/{process.pid}/stat").read_text().split()[2] for process in started.values()}
    assert code == 1
    assert "in no collective that their stacks show" in job["said"][0]
    assert states == {"S"}


def refusing_py_spy(directory: Path) -> str:
    """Put a py-spy that is refused into a directory; return an interpreter with none beside it, that takes this one."""
    program = directory / "py-spy"
    said = "Error: Permission Denied: Try running again with elevated permissions"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(directory / "bin" / "python")


def test_without_permission_the_scheduler_speaks_and_the_command_that_would_allow_stacks_is_told(
    tmp_path: Path,
) -> None:
    code = f"import sys; sys.executable = {refusing_py_spy(tmp_path)!r}; {COMMAND}"
    with ranks(2) as started:
        done = subprocess.run(
            [sys.executable, "-c", code, *(f"--pid={process.pid}" for process in started.values())],
            capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"PATH": str(tmp_path)},
        )  # fmt: skip
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "The stacks of ranks 0-1 could not be read." in said
    assert "idle, state sleeping, in futex" in said
    assert "no stack of ranks 0-1: the kernel refused to let py-spy read their processes" in said
    assert "(permission denied); to allow it, " in said


def test_a_pid_that_is_nobodys_is_told() -> None:
    done = diagnose("--pid", str(2**22 - 1))
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no process 4194303 on this node" in done.stderr


@pytest.mark.parametrize("form", ["--text", "--json"])
def test_names_that_another_process_chose_are_shown_and_not_obeyed(tmp_path: Path, form: str) -> None:
    program = tmp_path / "\x1b[2J训练.py"
    program.write_text(HOSTILE)
    job = "j\x1b]0;x\x07\nroot# 训练"
    environ = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "NCCLWATCH_JOB": job}
    with subprocess.Popen([sys.executable, str(program)], env=environ, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            done = diagnose(f"--pid={process.pid}", *([form] if form == "--json" else []))
        finally:
            process.kill()
    said = done.stdout + done.stderr
    assert all(c.isprintable() or c == "\n" for c in said)
    assert not any(line.startswith("root#") for line in said.splitlines())
    assert "clipboard" in said and "训练" in said
    if form == "--json":
        assert json.loads(done.stdout)["jobs"][0]["job"] == job_names.canonical(job)
