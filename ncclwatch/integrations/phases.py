"""Marks phases for a framework that tells of beginnings and ends, where an exception may leave out the end."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

import ncclwatch

VALIDATE = "validate"
TEST = "test"
PREDICT = "predict"
SANITY_CHECK = "sanity check (validate)"
SAVE = "save checkpoint"
LOAD = "load checkpoint"
REPORT = "report"


class Phases:
    """The phases that one callback has begun, innermost last. Nothing here raises or waits.

    A callback that the user adds and one that an entry point adds tell of the same phases: what one has marked, the
    other does not mark again.
    """

    _marked: ClassVar[set[str]] = set()  # by any callback of this process

    def __init__(self) -> None:
        self._open: list[tuple[str, AbstractContextManager[None]]] = []

    def begin(self, name: str) -> None:
        """Mark the beginning of a phase, inside of the one that lasts."""
        phase = nullcontext() if name in self._marked else self._mark(name)
        phase.__enter__()
        self._open.append((name, phase))

    @contextmanager
    def _mark(self, name: str) -> Iterator[None]:
        self._marked.add(name)
        try:
            with ncclwatch.phase(name):
                yield
        finally:
            self._marked.discard(name)

    def end(self, name: str) -> None:
        """Mark the end of a phase, and of those in it whose end was never told; nothing if it has not begun."""
        if not any(each == name for each, _ in self._open):
            return
        while self._open:
            found, phase = self._open.pop()
            phase.__exit__(None, None, None)
            if found == name:
                return

    def clear(self) -> None:
        """End all: the framework has left its loops with an exception."""
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)


def warn_if_not_attached(callback: str) -> None:
    """Say that a callback alone records nothing: who adds it by hand expects otherwise."""
    from ncclwatch.rank import attach

    if attach.current() is None:
        warnings.warn(
            f"ncclwatch: {callback} only marks phases and steps, and nothing records them: call ncclwatch.attach() at "
            "the beginning of the script, or run it by `ncclwatch run --inject`.",
            RuntimeWarning,
            stacklevel=3,
        )
