"""Where is an answer made that takes longer than an event loop may stand still? In two threads, for readers only.

The judge has threads of its own: a hundred people who look at a hang do not delay its verdict.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 2

T = TypeVar("T")


class Desk:
    """Makes answers beside the event loop."""

    def __init__(self, threads: int = THREADS, name: str = "ncclwatch-desk") -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def make(self, task: Callable[[], T]) -> T:
        """Return what a task returns, which runs in a thread and so must touch nothing that the loop changes."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, task)

    def close(self) -> None:
        """Let the threads go. What has not begun is not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
