"""Whether a launcher may start the ranks again that it has started."""

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ncclwatch_agent.ranks.launchers import AGAIN_S, Launchers


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that stands for torchrun."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def job(parent: int, *, under_torchrun: bool = True) -> Any:
    ranks = [SimpleNamespace(watch=SimpleNamespace(parent=parent))] * 2
    return SimpleNamespace(under_torchrun=under_torchrun, everyone=lambda: ranks)


def test_while_it_lives_and_not_for_ever(launcher: subprocess.Popen[bytes]) -> None:
    launchers = Launchers()
    assert not launchers.may_start_again(0.0)
    launchers.note(job(launcher.pid), 10.0)
    assert launchers.may_start_again(10.0)
    assert launchers.may_start_again(9.9 + AGAIN_S)
    assert not launchers.may_start_again(10.0 + AGAIN_S)


def test_not_once_it_has_ended_though_nobody_has_waited_for_it(launcher: subprocess.Popen[bytes]) -> None:
    launchers = Launchers()
    launchers.note(job(launcher.pid), 10.0)
    launcher.kill()
    launcher.wait()
    assert not launchers.may_start_again(10.0)


def test_only_torchrun_starts_ranks_again(launcher: subprocess.Popen[bytes]) -> None:
    launchers = Launchers()
    launchers.note(job(launcher.pid, under_torchrun=False), 10.0)
    launchers.note(job(1), 10.0)  # whose parent has ended
    launchers.note(job(0), 10.0)
    assert not launchers.may_start_again(10.0)
