"""A hook is one process group, with a deadline that it cannot evade and an end that is known."""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from ncclwatch.contract.on_hang.hook_process import OUTPUT_BYTES_MAX, HookProcess, HookResult

LONG_S = 60.0


def script(tmp_path: Path, text: str, first: str = "#!/bin/sh") -> str:
    path = tmp_path / "on-hang"
    path.write_text(f"{first}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def run(*command: str, data: bytes = b"{}\n", timeout_s: float = LONG_S) -> HookResult:
    return HookProcess(command, data, timeout_s, {**os.environ, "SAID": "so"}).wait()


def run_beyond_its_deadline(command: str) -> tuple[HookResult, str]:
    """Return the result of a hook that had begun when its deadline came, and that deadline in seconds.

    On a machine that is busy a shell may take longer to begin than a deadline that suits a test.
    """
    for timeout_s in (0.5, 5.0, LONG_S):
        result = run(command, timeout_s=timeout_s)
        if "begun" in result.lines:
            break
    return result, f"{timeout_s:g}"


def members(group: int) -> list[psutil.Process]:
    """Return the processes of a group that have not ended; nobody may have reaped the others yet."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_it_gets_its_arguments_its_input_and_its_environment_and_its_end_is_known(tmp_path: Path) -> None:
    result = run(script(tmp_path, 'echo "$1 $SAID $(cat)"; echo second >&2; exit 3'), "a b; c", data=b'{"x":1}\n')
    assert result.lines == ('a b; c so {"x":1}', "second")
    assert (result.code, result.failure) == (3, "")
    assert result.words.startswith("finished with 3 in ")


def test_one_that_reads_nothing_is_not_waited_for(tmp_path: Path) -> None:
    assert run(script(tmp_path, "exit 0"), data=b"x" * 1_000_000).code == 0


@pytest.mark.parametrize("first", ["#!/nowhere/sh", "no interpreter is named"])
def test_one_that_cannot_be_run_says_why(tmp_path: Path, first: str) -> None:
    result = run(script(tmp_path, "exit 0", first))
    assert result.code is None
    assert result.words.startswith("could not be run: ")


def test_one_that_a_signal_ends_says_so(tmp_path: Path) -> None:
    assert run(script(tmp_path, "kill -KILL $$")).words.startswith("was ended by signal 9 after ")


def test_it_gets_signals_that_its_parent_blocks_and_no_file_of_its_parent(tmp_path: Path) -> None:
    python = f"""import os
print(open("/proc/self/status").read().split("SigBlk:")[1].split()[0])  # a shell would unblock them
print(os.getsid(0) == os.getpid())
print([fd for fd in os.listdir("/proc/self/fd") if os.path.realpath("/proc/self/fd/" + fd) == {str(tmp_path)!r}])"""
    kept = os.open(tmp_path, os.O_RDONLY)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    try:
        result = run(script(tmp_path, python, f"#!{sys.executable}"))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(kept)
    assert result.lines == ("0000000000000000", "True", "[]")


def test_at_its_deadline_it_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """It ignores SIGTERM, as a process does that it has started."""
    pid = tmp_path / "pid"
    stubborn = f"trap '' TERM; sleep 600 & echo $$ > {pid}; echo begun; while :; do sleep 600; done"
    result, deadline = run_beyond_its_deadline(script(tmp_path, stubborn))
    assert result.words == f"did not end within {deadline} s (hook_timeout_s), and was killed"
    assert (result.code, result.lines) == (None, ("begun",))
    while members(int(pid.read_text())):  # the kernel ends them one after the other; each sleeps for 600 s
        time.sleep(0.01)


def test_at_its_deadline_it_may_clean_up_first(tmp_path: Path) -> None:
    cleans = "trap 'echo cleaned; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    result, _ = run_beyond_its_deadline(script(tmp_path, cleans))
    assert (result.lines[0], result.lines[-1]) == ("begun", "cleaned")
    assert result.code is None


def test_what_it_leaves_running_holds_up_nobody(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    result = run(script(tmp_path, f"sleep 600 & echo $! > {pid}; echo done"))
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert (result.code, result.lines) == (0, ("done",))
    assert result.seconds < 30.0


def test_of_what_it_writes_the_beginning_is_kept(tmp_path: Path) -> None:
    result = run(script(tmp_path, "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"))
    assert result.code == 0
    assert result.lines == tuple(f"line {number}" for number in range(10))
    assert len(run(script(tmp_path, "head -c 1000000 /dev/zero | tr '\\\\0' x")).lines[0]) < OUTPUT_BYTES_MAX


def test_one_is_ended_with_its_agent_and_whoever_waits_is_told(tmp_path: Path) -> None:
    said: list[HookResult] = []
    process = HookProcess((script(tmp_path, "sleep 600"),), b"", LONG_S, dict(os.environ), ended=said.append)
    assert process.result is None
    result = process.end()
    assert result.words == "was ended with its agent"
    assert said == [result]
    assert not any(each.name == "ncclwatch-hook" and each.is_alive() for each in threading.enumerate())


def test_no_file_is_left_open(tmp_path: Path) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        run(script(tmp_path, "exit 0"))
        run("/nowhere/on-hang")
    assert sorted(Path("/proc/self/fd").iterdir()) == before
