"""Knows which messages are issued as one, by `batch_isend_irecv` or a coalescing manager, and the work of them all.

Torch gives such a batch one work, and the messages in it none.
"""

import functools
from collections.abc import Callable

from torch._C import _distributed_c10d

from ncclwatch.rank.patches import guarded
from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder

Current = Callable[[], Recorder | None]


def install(patches: Patches, current: Current) -> None:
    """Patch where a batch begins and ends."""
    group = _distributed_c10d.ProcessGroup
    patches.replace(group, "_start_coalescing", lambda f: _make_begin(f, current))
    patches.replace(group, "_end_coalescing", lambda f: _make_end(f, current))


def _make_begin(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def _start_coalescing(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is not None:
            guarded.attempt(recorder, recorder.begin_batch)
        return original(*args, **kwargs)

    return _start_coalescing


def _make_end(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def _end_coalescing(*args: object, **kwargs: object) -> object:
        work = None
        try:
            work = original(*args, **kwargs)
            return work
        finally:
            recorder = current()
            if recorder is not None:
                guarded.attempt(recorder, recorder.end_batch, work)

    return _end_coalescing
