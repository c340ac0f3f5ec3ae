"""Knows when a CUDA graph is being captured: then no thread of this process may ask CUDA for anything.

The full dump of NCCL's flight recorder asks for the state of each entry's events; during a capture that would end
the capture with an error, in the user's code. The pulse waits with it.
"""

import functools
from collections.abc import Callable

import torch

from ncclwatch.rank.patches.patching import Patches
from ncclwatch.rank.recorder import Recorder

Current = Callable[[], Recorder | None]


def install(patches: Patches, current: Current) -> None:
    """Patch where captures begin and end; builds without CUDA have the names, too."""
    graph = torch.cuda.CUDAGraph
    patches.replace(graph, "capture_begin", lambda f: _make_begin(f, current))
    patches.replace(graph, "capture_end", lambda f: _make_end(f, current))


def _make_begin(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def capture_begin(*args: object, **kwargs: object) -> object:
        recorder = current()
        if recorder is not None:
            recorder.captures += 1  # before it begins: the pulse must not be in the middle of a dump
        try:
            return original(*args, **kwargs)
        except BaseException:
            _left(recorder)
            raise

    return capture_begin


def _make_end(original: Callable[..., object], current: Current) -> Callable[..., object]:
    @functools.wraps(original)
    def capture_end(*args: object, **kwargs: object) -> object:
        try:
            return original(*args, **kwargs)
        finally:
            _left(current())

    return capture_end


def _left(recorder: Recorder | None) -> None:
    if recorder is not None and recorder.captures > 0:
        recorder.captures -= 1
