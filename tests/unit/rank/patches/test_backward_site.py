"""Where an operation comes from that no frame of the user's has led to."""

import _thread
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches import training
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(1, 1), attempt=0))
    yield recorder
    recorder.ring.close()


def test_a_thread_of_autograd_issues_for_the_line_of_the_backward_that_runs(recorder: Recorder):
    recorder.begin_backward(7)
    said: queue.Queue[int] = queue.Queue()
    _thread.start_new_thread(lambda: said.put(recorder.sites.of_backward()), ())
    assert said.get(timeout=10) == 7


def test_a_thread_that_python_has_started_issues_for_no_backward(recorder: Recorder):
    recorder.begin_backward(7)
    said: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=lambda: said.put(recorder.sites.of_backward()))
    thread.start()
    thread.join()
    assert said.get(timeout=10) == 0


def test_a_backward_that_is_over_has_no_line(recorder: Recorder):
    backward = training._make_backward(lambda: recorder.ring.word(Word.BACKWARD_SITE), lambda: recorder)
    assert backward() != 0
    assert recorder.ring.word(Word.BACKWARD_SITE) == 0


def test_the_line_of_an_outer_backward_comes_back_after_an_inner_one(recorder: Recorder):
    recorder.begin_backward(7)
    training._make_backward(lambda: None, lambda: recorder)()
    assert recorder.ring.word(Word.BACKWARD_SITE) == 7


def test_a_thread_that_python_does_not_know_stays_unknown(recorder: Recorder):
    said: queue.Queue[bool] = queue.Queue()

    def issue() -> None:
        recorder.sites.of_backward()
        recorder.thread()
        said.put(threading.get_ident() in threading._active)

    _thread.start_new_thread(issue, ())
    assert not said.get(timeout=10)
