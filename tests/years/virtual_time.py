"""Runs an asyncio program in simulated time: whenever all wait, the clock goes on to whoever wakes next.

What a program hands to a thread is done at once, so that the same seed gives the same order of everything.
"""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: it lets the clock of its loop go on instead."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let so much time pass."""
        if timeout is None:
            raise RuntimeError("nothing is scheduled any more: the simulation would stand still for ever")
        if timeout > 0:
            self.loop.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the simulated time."""
        return self.now_s

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Do it at once."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever awaits it gets it
            done.set_exception(error)
        return done
