"""What the user says about progress: steps and phases."""

import contextlib
import time
from collections.abc import Iterator

from ncclwatch.contract.ring import Word
from ncclwatch.rank import attach


def step(number: int | None = None) -> None:
    """Mark the end of a training step."""
    recorder = attach.current()
    if recorder is None:
        return
    recorder.steps_marked = True
    recorder.count_step(recorder.ring.word(Word.STEPS) + 1 if number is None else max(0, int(number)))


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark what happens inside as one phase."""
    recorder = attach.current()
    if recorder is None:
        yield
        return
    ring = recorder.ring
    outer = ring.word(Word.PHASE), ring.word(Word.PHASE_NS)
    ring.set_word(Word.PHASE_NS, time.monotonic_ns())
    ring.set_word(Word.PHASE, ring.string(str(name)[:100]))
    try:
        yield
    finally:
        ring.set_word(Word.PHASE, outer[0])
        ring.set_word(Word.PHASE_NS, outer[1])
