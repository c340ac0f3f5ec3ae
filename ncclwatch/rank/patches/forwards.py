"""Wraps forwards of models so that a compiler sees through the wrapper, and compiles what it would have without it.

This is the only file of ours that torch.compile may trace, see `compilers.py`. So there is nothing else in it.
"""

import functools
from collections.abc import Callable

import torch


def make_forward(original: Callable[..., object], watched: Callable[..., object]) -> Callable[..., object]:
    """Return a forward that does what `watched` does, and in a compiler's eyes what `original` does."""

    @functools.wraps(original)
    def forward(*args: object, **kwargs: object) -> object:
        if torch.compiler.is_compiling():  # folded away by dynamo: no graph break
            return original(*args, **kwargs)
        return watched(*args, **kwargs)

    return forward
