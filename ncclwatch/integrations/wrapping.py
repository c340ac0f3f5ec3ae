"""Marks calls of one object's method, where a framework has no callbacks.

The wrapper is an attribute of the object, in front of its class's method: other objects, and the class, stay as they
are. A method that is not there, as in another version of the framework, is left out.
"""

import functools
from collections.abc import Callable
from typing import Any

import ncclwatch

_MARKED = "_ncclwatch_marked"


def mark_phase(owner: object, method: str, name: str) -> None:
    """Mark each call of `owner.method` as a phase."""

    def marked(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            with ncclwatch.phase(name):
                return original(*args, **kwargs)

        return call

    _replace(owner, method, marked)


def mark_step(owner: object, method: str, count: str) -> None:
    """Mark a step after each call of `owner.method`; the steps so far are `owner.count`."""

    def marked(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            steps = getattr(owner, count, None)
            if isinstance(steps, int):
                ncclwatch.step(steps)
            return result

        return call

    _replace(owner, method, marked)


def _replace(owner: object, method: str, marked: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, method, None)
    if not callable(original) or getattr(original, _MARKED, False):
        return
    wrapper = marked(original)
    setattr(wrapper, _MARKED, True)
    setattr(owner, method, wrapper)
