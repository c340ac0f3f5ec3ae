"""Waits for something no longer than so long, and still hears a cancellation that comes meanwhile.

asyncio.wait_for of Python 3.10 and 3.11 forgets a cancellation that arrives together with the
result. An agent that does so would never end.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Return the result of some work. Raises asyncio.TimeoutError, after cancelling it, if it takes longer."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await cancelled(task)
        raise
    if not done:
        await cancelled(task)
        raise asyncio.TimeoutError
    return task.result()


async def cancelled(task: "asyncio.Future[T]") -> None:
    """Cancel a task and wait until it has ended, however it ended."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # taken, so that nobody complains that it was not
