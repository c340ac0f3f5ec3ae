"""Who holds a file lock is read from the kernel's own list, for both kinds of lock."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclwatch_agent.process.file_locks import (
    POLL_S_MAX,
    LockWait,
    Polled,
    lock_path,
    lock_wait,
    may_be_in_lock,
    parse_holder,
    parse_locks,
    polled_lock,
)

LOCKS = """\
1: POSIX  ADVISORY  WRITE 10 fe:00:700 0 EOF
1: -> POSIX  ADVISORY  WRITE 11 fe:00:700 0 EOF
1: -> POSIX  ADVISORY  READ 12 fe:00:700 0 99
2: FLOCK  ADVISORY  WRITE 20 08:11:800 0 EOF
3: LEASE  ACTIVE    READ 30 08:11:900 0 EOF
"""


@pytest.mark.parametrize(("pid", "holder"), [(11, 10), (12, 10)])
def test_a_waiter_stands_below_the_holder(pid: int, holder: int):
    assert parse_locks(LOCKS, pid) == LockWait(holder=holder, inode=700)


@pytest.mark.parametrize("pid", [10, 20, 30, 99])
def test_who_holds_a_lock_or_has_none_waits_for_nothing(pid: int):
    assert parse_locks(LOCKS, pid) is None


@pytest.mark.parametrize(
    ("place", "may"),
    [("", True), ("flock (locks_lock_inode_wait)", True), ("fcntl", True), ("locks_lock_inode_wait", True),
     ("wait4 (do_wait)", False), ("futex (futex_do_wait)", False), ("clock_nanosleep (hrtimer_nanosleep)", False)],
)  # fmt: skip
def test_a_thread_that_waits_elsewhere_waits_for_no_lock(place: str, may: bool):
    assert may_be_in_lock(place) is may


def test_a_holder_in_another_container_is_unknown():
    """The kernel shows pids of other namespaces as 0 or -1."""
    assert parse_locks(LOCKS.replace("WRITE 10", "WRITE 0"), 11) is None


def test_lines_that_nobody_understands_are_left_out():
    assert parse_locks("nonsense\n2: -> what\n" + LOCKS, 11) == LockWait(holder=10, inode=700)


@pytest.mark.parametrize(("inode", "holder"), [(700, 10), (800, 20), (900, 0), (70, 0)])
def test_who_holds_the_lock_of_a_file_stands_first(inode: int, holder: int):
    assert parse_holder(f"nonsense\n{LOCKS}", inode) == holder
    assert parse_holder(LOCKS.replace("WRITE 20", "WRITE -1"), 800) == 0


def test_a_lock_is_polled_for_as_long_as_it_is_tried_and_somebody_holds_it(tmp_path: Path):
    with (tmp_path / "lock").open("w") as file:
        inode = os.fstat(file.fileno()).st_ino
        polled = Polled(inode=inode, for_s=9.0, tried_s=POLL_S_MAX)
        assert polled_lock(polled) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert polled_lock(polled) == LockWait(holder=os.getpid(), inode=inode, polled_s=9.0)
        assert polled_lock(Polled(inode=inode, for_s=9.0, tried_s=POLL_S_MAX + 0.1)) is None


@pytest.mark.parametrize(("take", "name"), [(fcntl.flock, "flock"), (fcntl.lockf, "lockf")])
def test_a_real_wait_is_seen_with_its_file(take: Callable[..., None], name: str, tmp_path: Path):
    path = tmp_path / "tokens.lock"
    with path.open("w") as file:
        take(file, fcntl.LOCK_EX)
        program = f"import fcntl; f = open({str(path)!r}, 'w'); fcntl.{name}(f, fcntl.LOCK_EX)"
        with subprocess.Popen([sys.executable, "-c", program]) as waiter:
            deadline = time.monotonic() + 20.0
            while (found := lock_wait(waiter.pid)) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            where = lock_path(waiter.pid, found.inode) if found else ""
            waiter.kill()
    assert found == LockWait(holder=os.getpid(), inode=path.stat().st_ino)
    assert where == str(path)
