"""Whether it is seen that a process was born, and that children are looked for then and not otherwise."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclwatch_agent.process import rank_process
from ncclwatch_agent.process.births import Births
from ncclwatch_agent.process.procfs import parse_stat
from ncclwatch_agent.process.rank_process import CHILDREN_EVERY, SPARED_MAX, ProcessWatch

S = 1_000_000_000
PERIOD = CHILDREN_EVERY * (SPARED_MAX + 1)  # observations after which children are looked for in any case


@pytest.fixture
def births() -> Iterator[Births]:
    """The births of this node."""
    made = Births()
    yield made
    made.close()


def test_a_process_that_was_born_is_seen(births: Births):
    before = births.newest()
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert 0 < before != births.newest()


@pytest.mark.parametrize("told", ["0.00 0.00 0.00 0/0 0\n", "0.01 0.04 0.05 3/80 4711\n", "", "nonsense\n"])
def test_a_file_that_does_not_tell_of_births_is_not_believed(tmp_path: Path, told: str):
    path = tmp_path / "loadavg"
    path.write_text(told)
    made = Births(str(path))
    assert made.newest() == 0
    made.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose children were looked for, one by one."""
    found: list[int] = []

    def descendants(pid: int, most: int) -> list[int]:
        found.append(pid)
        return [][:most]

    monkeypatch.setattr(rank_process, "descendants", descendants)
    return found


def observed(times: int) -> None:
    stat = parse_stat(Path("/proc/self/stat").read_bytes())
    assert stat is not None
    watch = ProcessWatch(os.getpid(), stat.start_ticks)
    for number in range(times):
        watch.observe(number * S)
    watch.close()


def test_children_are_looked_for_again_after_a_birth(looks: list[int], monkeypatch: pytest.MonkeyPatch):
    newest = iter([5, 5, 6, 6])
    monkeypatch.setattr(Births, "newest", lambda _: next(newest))
    observed(4 * CHILDREN_EVERY)
    assert len(looks) == 2


def test_children_are_looked_for_now_and_then_though_nothing_was_born(
    looks: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Births, "newest", lambda _: 5)
    observed(PERIOD)
    assert len(looks) == 1
    observed(PERIOD + 1)
    assert len(looks) == 3


def test_children_are_looked_for_each_time_where_nobody_tells_of_births(
    looks: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Births, "newest", lambda _: 0)
    observed(4 * CHILDREN_EVERY)
    assert len(looks) == 4
