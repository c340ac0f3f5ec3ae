"""Whose a lock file is, as far as this node can say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclwatch_agent.saves import lock_files
from ncclwatch_agent.saves.lock_files import counts_as, lock_file


@pytest.fixture
def dead() -> int:
    """Give the pid of a process that is gone."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_the_process_that_stands_in_it_lives(tmp_path: Path) -> None:
    file = tmp_path / "tokens.lock"
    file.write_text(f"{os.getpid()}\n")
    found = lock_file(os.getpid(), str(file))
    assert found is not None and (found.writer, found.ended) == (os.getpid(), False)


def test_the_process_that_stands_in_it_has_ended(tmp_path: Path, dead: int) -> None:
    file = tmp_path / "tokens.lock"
    file.write_text(str(dead))
    found = lock_file(os.getpid(), str(file))
    assert found is not None and (found.path, found.writer, found.ended) == (str(file), dead, True)


def test_a_process_that_was_started_after_the_file_was_written_has_not_written_it(tmp_path: Path) -> None:
    file = tmp_path / "tokens.lock"
    file.write_text(str(os.getpid()))
    os.utime(file, (0, 0))
    found = lock_file(os.getpid(), str(file))
    assert found is not None and found.ended


@pytest.mark.parametrize("text", ["", "gpu-7", "gpu-7\n4711", "-1"])
def test_nobody_stands_in_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.lock"
    file.write_text(text)
    found = lock_file(os.getpid(), str(file))
    assert found is not None and (found.writer, found.ended) == (0, False)


def test_a_directory_is_a_lock_of_nobody_known(tmp_path: Path) -> None:
    found = lock_file(os.getpid(), str(tmp_path))
    assert found is not None and (found.writer, found.ended) == (0, False)


def test_a_file_that_is_gone_by_now_is_none(tmp_path: Path) -> None:
    assert lock_file(os.getpid(), str(tmp_path / "tokens.lock")) is None


def test_a_path_from_where_the_process_stands_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens.lock").write_text(str(os.getpid()))
    found = lock_file(os.getpid(), "tokens.lock")
    assert found is not None and found.writer == os.getpid()


def test_of_a_file_that_other_nodes_may_use_nothing_is_said(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens.lock"
    file.write_text(str(dead))
    mounts = "1 0 0:1 / / rw - nfs4 server:/ rw\n"
    monkeypatch.setattr(lock_files, "_mounts", lambda _: mounts)
    found = lock_file(os.getpid(), str(file))
    assert found is not None and (found.writer, found.ended) == (0, False)


@pytest.mark.parametrize(
    ("mounts", "ended"),
    [
        ("1 0 0:1 / / rw - overlay overlay rw\n", True),
        ("1 0 0:1 / / rw - overlay overlay rw\n2 1 0:2 / /{} rw - ext4 /dev/vda rw\n", False),
        ("1 0 0:1 / / rw - ext4 /dev/vda rw\n", False),
    ],
)
def test_of_what_other_containers_write_to_nobody_in_one_says_that_its_process_has_ended(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch, mounts: str, ended: bool
) -> None:
    file = tmp_path / "tokens.lock"
    file.write_text(str(dead))
    monkeypatch.setattr(lock_files, "_mounts", lambda _: mounts.format(str(tmp_path).strip("/")))
    monkeypatch.setattr(lock_files, "pid_namespace", lambda: "4026532177")
    found = lock_file(os.getpid(), str(file))
    assert found is not None and (found.writer, found.ended) == (dead, ended)


def test_a_process_of_another_container_that_has_the_number_there_may_have_written_it(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens.lock"
    file.write_text(str(dead))
    own, read_text = f"/proc/{os.getpid()}/status", lock_files.read_text
    monkeypatch.setattr(
        lock_files, "read_text", lambda path: f"NSpid:\t{os.getpid()}\t{dead}" if path == own else read_text(path)
    )
    found = lock_file(os.getpid(), str(file))
    assert found is not None and (found.writer, found.ended) == (dead, False)


@pytest.mark.parametrize(("number", "has_it"), [(4711, True), (7, True), (47, False), (1, False)])
def test_a_process_has_a_number_in_each_of_its_namespaces(number: int, has_it: bool) -> None:
    assert counts_as("Name:\tpython\nPid:\t4711\nNSpid:\t4711\t7\nThreads:\t1\n", number) is has_it


@pytest.mark.timeout(20)
def test_a_pipe_of_that_name_does_not_hold_the_agent_up(tmp_path: Path) -> None:
    pipe = tmp_path / "tokens.lock"
    os.mkfifo(pipe)
    found = lock_file(os.getpid(), str(pipe))
    assert found is not None and (found.writer, found.ended) == (0, False)


def test_what_a_link_leads_to_is_not_read(tmp_path: Path, dead: int) -> None:
    file, link = tmp_path / "other", tmp_path / "tokens.lock"
    file.write_text(str(dead))
    link.symlink_to(file)
    found = lock_file(os.getpid(), str(link))
    assert found is not None and (found.writer, found.ended) == (0, False)
