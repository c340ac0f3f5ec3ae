"""Makes methods of a real agent or server fail, from the moment at which the file that SABOTAGE_WHEN names appears."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

Sabotage = Callable[[], None]


def due() -> bool:
    """Return whether it is time."""
    return Path(os.environ["SABOTAGE_WHEN"]).exists()


def before(owner: object, name: str, act: Callable[..., None], *, once: bool = False) -> Sabotage:
    """Return what lets each call of a function, or the first one only, do something first; `act` gets its arguments."""

    def sabotage() -> None:
        real, done = getattr(owner, name), []

        def sabotaged(*arguments: object) -> object:
            if due() and not (once and done):
                done.append(1)
                act(*arguments)
            return real(*arguments)

        setattr(owner, name, sabotaged)

    return sabotage


def hang_task(owner: type, name: str) -> Sabotage:
    """Return what lets a coroutine wait for ever."""

    def sabotage() -> None:
        real = getattr(owner, name)

        async def stuck(*arguments: object) -> object:
            if due():
                await asyncio.Event().wait()
            return await real(*arguments)

        setattr(owner, name, stuck)

    return sabotage


def raising(error: BaseException, of: Callable[..., bool] = lambda *_: True) -> Callable[..., None]:
    """Return what raises where a condition of the arguments holds."""

    def fail(*arguments: object) -> None:
        if of(*arguments):
            raise type(error)(*error.args)  # a new one, without the traceback of the last

    return fail


def stuck(*_: object) -> None:
    """Block the thread for ever."""
    threading.Event().wait()


def spin(*_: object) -> None:
    """Compute for ever."""
    while True:
        pass


def cancel(*_: object) -> None:
    """Cancel the task that calls."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
