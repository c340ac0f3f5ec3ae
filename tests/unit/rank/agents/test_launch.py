"""Exactly one agent is started, and what stands in the way is told as the end of a sentence."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclwatch.rank.agents import launch


@pytest.fixture(autouse=True)
def agents_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCLWATCH_AGENT", raising=False)


def test_while_somebody_holds_the_lock_none_is_started(tmp_path: Path):
    fd = os.open(tmp_path / "agent.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert launch.ensure_agent(str(tmp_path)) is None
    finally:
        os.close(fd)


def test_the_started_process_holds_the_lock_from_the_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/bin/cat")  # ends at once: it has no such option
    started = launch.ensure_agent(str(tmp_path))
    assert started is not None
    started.wait()
    trouble = launch.launch_trouble(started, str(tmp_path))
    assert trouble is not None
    assert "ended at once with code 1" in trouble
    assert f"{tmp_path}/agent.log" in trouble
    again = launch.ensure_agent(str(tmp_path))
    assert again is not None, "the lock was not given back when its holder ended"
    again.wait()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(launch.LaunchError, match=r"cannot open .*/file/sub/agent.lock: Not a directory"):
        launch.ensure_agent(str(tmp_path / "file" / "sub"))


def test_an_interpreter_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(launch.LaunchError, match="No such file"):
        launch.ensure_agent(str(tmp_path))


def test_no_trouble_is_known_before_it_ended_and_none_after_it_detached(tmp_path: Path):
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        assert launch.launch_trouble(process, str(tmp_path)) is None
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        assert launch.launch_trouble(process, str(tmp_path)) == ""


@pytest.mark.parametrize("card", ["", "[]", "{}", '{"pid": "x"}', "garbage"])
def test_an_unreadable_card_names_no_agent(tmp_path: Path, card: str):
    (tmp_path / "agent.json").write_text(card)
    assert launch.agent_pid(str(tmp_path)) == 0
