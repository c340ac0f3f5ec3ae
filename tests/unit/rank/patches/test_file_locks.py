"""A file lock that a rank tries to take again and again is in its ring, until it gets it."""

import fcntl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

pytest.importorskip("torch")

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches import file_locks
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder
from ncclwatch.rank.ring.ringfile import RingFile

TRY = fcntl.LOCK_EX | fcntl.LOCK_NB


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    found = Recorder(RingFile(str(tmp_path / "0-1.ring"), rank=0, local_rank=0, world=(2, 2), attempt=0))
    patches = Patches()
    original = fcntl.flock, fcntl.lockf
    file_locks.install(patches, lambda: found)
    yield found
    patches.restore()
    assert (fcntl.flock, fcntl.lockf) == original


@pytest.fixture
def file(tmp_path: Path) -> Iterator[IO[str]]:
    with (tmp_path / "lock").open("w") as found:
        yield found


@pytest.fixture
def held(tmp_path: Path, file: IO[str]) -> Iterator[IO[str]]:
    """Have another open file hold the lock of `file`."""
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        yield other


def fails(file: IO[str] | int) -> None:
    with pytest.raises(BlockingIOError):
        fcntl.flock(file, TRY)


def since_and_tried(recorder: Recorder) -> tuple[int, int]:
    return recorder.ring.word(Word.LOCK_SINCE_NS), recorder.ring.word(Word.LOCK_TRIED_NS)


def test_tries_that_fail_are_recorded_until_one_succeeds(recorder: Recorder, file: IO[str], held: IO[str]):
    fails(file)
    first = since_and_tried(recorder)
    fails(file.fileno())
    assert recorder.ring.word(Word.LOCK_POLLED) == Path(file.name).stat().st_ino
    since_ns, tried_ns = since_and_tried(recorder)
    assert first[0] == first[1] == since_ns < tried_ns
    fcntl.flock(held, fcntl.LOCK_UN)
    fcntl.flock(file, TRY)
    assert recorder.ring.word(Word.LOCK_POLLED) == 0


def test_who_goes_on_to_an_operation_between_two_tries_does_not_poll(recorder: Recorder, file: IO[str], held: IO[str]):
    fails(file)
    first_ns, _ = since_and_tried(recorder)
    recorder.ring.set_word(Word.EVENTS_HEAD, recorder.ring.word(Word.EVENTS_HEAD) + 1)
    fails(file)
    assert since_and_tried(recorder)[0] > first_ns


def test_another_file_begins_anew(recorder: Recorder, file: IO[str], held: IO[str], tmp_path: Path):
    fails(file)
    first_ns, _ = since_and_tried(recorder)
    with (tmp_path / "other").open("w") as one, (tmp_path / "other").open("w") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        fails(two)
        assert recorder.ring.word(Word.LOCK_POLLED) == Path(two.name).stat().st_ino
    assert since_and_tried(recorder)[0] > first_ns


def test_tries_of_other_threads_hold_nobody_up(recorder: Recorder, file: IO[str], held: IO[str]):
    thread = threading.Thread(target=fails, args=(file,))
    thread.start()
    thread.join()
    assert recorder.ring.word(Word.LOCK_POLLED) == 0


@pytest.mark.parametrize(
    "lock", [lambda file: fcntl.flock(file, fcntl.LOCK_EX), lambda file: fcntl.lockf(file, TRY, 1)]
)
def test_a_lock_that_is_free_is_taken(recorder: Recorder, file: IO[str], lock: Callable[[IO[str]], object]):
    lock(file)
    assert recorder.ring.word(Word.LOCK_POLLED) == 0


def test_errors_are_those_of_the_call(recorder: Recorder):
    with pytest.raises(OSError, match="Bad file descriptor"):
        fcntl.flock(10**6, TRY)
    with pytest.raises(TypeError):
        fcntl.flock("no file", TRY)  # type: ignore[arg-type]
    assert recorder.ring.word(Word.LOCK_POLLED) == 0
