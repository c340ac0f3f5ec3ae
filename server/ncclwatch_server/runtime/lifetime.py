"""Ends a server when its parent is gone, or when no agent needs it any more."""

import asyncio
import os
from collections.abc import Callable

FIRST_AGENT_S = 60.0
LAST_AGENT_S = 10.0
RESTART_S = 45.0  # of a job on several nodes: torchrun gives its ranks 30 s to end, and the next ones import torch
_LOOK_S = 0.5


async def parent_gone(pid: int) -> None:
    """Return when a process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def unneeded(
    agents: Callable[[], int], clock: Callable[[], float], *, last_agent_s: float = LAST_AGENT_S
) -> None:
    """Return when the last agent has been away for a while, or when none ever came.

    An agent that is there counts however late this looks: the whole machine may have been halted.
    """
    patience_s = FIRST_AGENT_S
    last = clock()
    while agents() or clock() - last < patience_s:
        if agents():
            last, patience_s = clock(), last_agent_s
        await asyncio.sleep(_LOOK_S)
