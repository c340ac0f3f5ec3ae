"""What a process does to answer us is no sign that it works."""

import os
import time
from collections.abc import Iterator

import pytest

from ncclwatch_agent.process.procfs import parse_stat
from ncclwatch_agent.process.rank_process import ProcessWatch

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


def work() -> None:
    """Use clearly more CPU than counts as none."""
    began = time.process_time()
    while time.process_time() - began < 0.15:
        pass


def still_s(watch: ProcessWatch, second: int) -> float:
    watch.observe(second * SECOND_NS)
    return watch.view(second * SECOND_NS).cpu_still_s


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
