"""Does what takes longer than an event loop may stand still, in threads, as many as a desk has.

Those of readers are for them only: a hundred people who look at a hang do not delay its verdict.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ncclwatch.contract.machine.liveness import LoopLife
from ncclwatch_server import limits

THREADS = (
    1  # each takes turns with the event loop, which waits for all of them: with two, a digest in the mean twice as long
)

T = TypeVar("T")


class Desk:
    """Makes answers beside the event loop."""

    def __init__(
        self, name: str = "ncclwatch-desk", *, ends_s: float = limits.PART_ENDS_S, vital: bool = False
    ) -> None:
        """`ends_s`, `vital`: see `LoopLife`. One thread: the life of several would tell of the one that goes on."""
        self.life = LoopLife(name.removeprefix("ncclwatch-"), age_s_max=limits.PART_STILL_S, ends_s=ends_s, vital=vital)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)

    async def make(self, task: Callable[[], T]) -> T:
        """Return what a task returns, which runs in a thread and so must touch nothing that the loop changes."""
        return await self.begin(task)

    def begin(self, task: Callable[[], T]) -> "asyncio.Future[T]":
        """Begin to make it. Of one thread the answers come in the order of the tasks."""
        return asyncio.get_running_loop().run_in_executor(self._threads, self._done, task)

    def _done(self, task: Callable[[], T]) -> T:
        """Do it, and let it be seen when it never ends."""
        self.life.thread = threading.get_ident()
        self.life.went_round()
        try:
            return task()
        finally:
            self.life.rests()

    def close(self) -> None:
        """Let the threads go. What has not begun is not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
