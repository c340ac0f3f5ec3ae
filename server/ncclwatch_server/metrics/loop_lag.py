"""How late is the event loop? Asked four times a second, by sleeping and looking at the clock."""

import asyncio

from ncclwatch_server.timings import Timings

EVERY_S = 0.25


async def measure(timings: Timings) -> None:
    """Note the lateness until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + EVERY_S
        await asyncio.sleep(EVERY_S)
        timings.lagged(max(0.0, loop.time() - due))
