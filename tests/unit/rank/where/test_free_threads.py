"""Threads that may yet act are told from those that wait for work, and from those of libraries."""

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from ncclwatch.rank.where import free_threads


def users(frame: FrameType | None) -> FrameType | None:
    """Take this file for the user's code."""
    while frame is not None and frame.f_code.co_filename != __file__:
        frame = frame.f_back
    return frame


@contextmanager
def running(target: Callable[[threading.Event], object], name: str = "loader") -> Iterator[threading.Thread]:
    """Run a thread that stands in something until the end; `target` gets an event that is set then."""
    end, begun = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        target(end)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    begun.wait()
    try:
        yield thread
    finally:
        end.set()
        thread.join()


def standing(thread: threading.Thread, name: str) -> None:
    """Wait until the innermost frame of a thread is in this function."""
    while sys._current_frames()[thread.ident or 0].f_code.co_name != name:
        pass


def spin(end: threading.Event) -> None:
    while not end.is_set():
        pass


def counted(recorded: tuple[int, ...] = (), is_users: Callable[[FrameType | None], object] = users) -> int:
    return free_threads.count(sys._current_frames(), recorded, is_users)


def test_a_thread_of_the_user_that_does_something_counts():
    with running(spin) as thread:
        assert counted() == 1
        assert counted(recorded=(thread.ident or 0,)) == 0
        assert counted(is_users=lambda _: None) == 0


def test_a_thread_of_ours_does_not_count():
    with running(spin, name="ncclwatch-pulse"):
        assert counted() == 0


@pytest.mark.parametrize(("timeout", "number"), [(None, 0), (60.0, 1)])
def test_a_thread_that_waits_counts_if_that_ends_by_itself(timeout: float | None, number: int):
    with running(lambda end: end.wait(timeout)) as thread:
        standing(thread, "wait")
        assert counted() == number


def test_a_thread_that_waits_for_work_does_not_count():
    work: queue.Queue[int] = queue.Queue()
    with running(lambda _: work.get()) as thread:
        standing(thread, "wait")
        assert counted() == 0
        work.put(1)


def test_a_thread_that_waits_for_another_one_does_not_count():
    release = threading.Event()
    with running(lambda _: release.wait()) as first, running(lambda _: first.join()) as thread:
        while sys._current_frames()[thread.ident or 0].f_code.co_filename != threading.__file__:
            pass
        try:
            assert counted() == 0
        finally:
            release.set()
