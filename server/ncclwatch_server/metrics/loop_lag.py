"""Measures how late the event loop is, four times a second, by sleeping and looking at the clock."""

import asyncio

from ncclwatch.contract.machine.liveness import LoopLife
from ncclwatch_server.watch.timings import Timings

EVERY_S = 0.25


async def measure(timings: Timings, life: LoopLife) -> None:
    """Note the lateness until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        life.went_round()
        due = loop.time() + EVERY_S
        await asyncio.sleep(EVERY_S)
        timings.lagged(max(0.0, loop.time() - due))
