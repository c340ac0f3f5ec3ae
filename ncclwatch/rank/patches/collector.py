"""Measures how much time Python's garbage collector takes from this rank. It stops the thread that trains."""

import gc
import time
from collections.abc import Callable

from ncclwatch.contract.ring.layout import Word
from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder


def install(patches: Patches, current: Callable[[], Recorder | None]) -> None:
    """Have the collector say when it begins and ends."""
    began_ns = 0

    def note(phase: str, _: dict[str, int]) -> None:
        nonlocal began_ns
        if phase == "start":
            began_ns = time.monotonic_ns()
            return
        recorder = current()
        if recorder is not None and began_ns:
            guarded.attempt(recorder, recorder.ring.add_time, Word.GC_NS, time.monotonic_ns() - began_ns)

    gc.callbacks.append(note)
    patches.on_restore(lambda: gc.callbacks.remove(note))
