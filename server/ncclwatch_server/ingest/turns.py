"""Shares the time of the event loop between the lines of agents: one that takes long at once pauses for longer.

An agent sends one digest a second, which takes 50 microseconds. Short messages that come as fast as a line carries them
would keep the loop from everybody else. A line may use a tenth of the loop's time. One that has used `TURN_S` more than
that gives way, and is read again after nine times as long; where several lines do that, each pauses longer, so that all
of them together take a tenth of the time.

What a line has used is CPU time of the loop's thread. Time in which that waits, for a core or for the judge to release
the GIL, is not the line's: on a busy server every digest would seem long.
"""

import asyncio
import time
from collections.abc import Callable

from ncclwatch_server import limits


def used_since(used_s: float, passed_s: float) -> float:
    """Return how much more than its share a line has used, after some time in which it used nothing."""
    return max(0.0, used_s - passed_s / (1 + limits.TURN_PAUSE_TIMES))


class Turns:
    """Who has taken long, and pauses."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, used: Callable[[], float] = time.thread_time
    ) -> None:
        self.clock = clock
        self.used = used
        self.pausing = 0

    def pause(self, took_s: float, then: Callable[[], None]) -> asyncio.TimerHandle:
        """Call something when a line that has taken so long may go on. `over` must be called then, or instead."""
        self.pausing += 1
        pause_s = min(limits.TURN_PAUSE_S_MAX, took_s * limits.TURN_PAUSE_TIMES * self.pausing)
        return asyncio.get_running_loop().call_later(pause_s, then)

    def over(self) -> None:
        """Note that a line pauses no longer."""
        self.pausing -= 1
