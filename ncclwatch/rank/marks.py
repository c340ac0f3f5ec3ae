"""What the user says about progress: steps and phases."""

import contextlib
import time
from collections.abc import Iterator

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank import attach
from ncclwatch.rank.ring.ringfile import RingFile
from ncclwatch.rank.where.handlers import quietly


def step(number: int | None = None) -> None:
    """Mark the end of a training step."""
    recorder = attach.current()
    if recorder is None:
        return
    recorder.steps_marked = True
    with quietly:  # nothing of ours may stop training
        recorder.count_step(recorder.ring.word(Word.STEPS) + 1 if number is None else max(0, int(number)))


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark what happens inside as one phase."""
    recorder = attach.current()
    if recorder is None:
        yield
        return
    ring = recorder.ring
    outer = (0, 0)
    with quietly:  # as above
        outer = ring.word(Word.PHASE), ring.word(Word.PHASE_NS)
        _set_phase(ring, ring.string(str(name)[:100]), time.monotonic_ns())
    try:
        yield
    finally:
        with quietly:
            _set_phase(ring, *outer)


def _set_phase(ring: RingFile, name: int, since_ns: int) -> None:
    ring.set_word(Word.PHASE_NS, since_ns)
    ring.set_word(Word.PHASE, name)
