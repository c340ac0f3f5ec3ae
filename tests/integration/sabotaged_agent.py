"""A real agent that fails in one place, as soon as a file appears: python -m tests.integration.sabotaged_agent.

SABOTAGE says where, SABOTAGE_WHEN names the file.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

from ncclwatch_agent import agent, faults
from ncclwatch_agent.__main__ import main
from ncclwatch_agent.ranks.jobs import LocalJob
from ncclwatch_agent.ranks.rank_rows import LocalRank
from ncclwatch_agent.server_choice import Servers
from ncclwatch_agent.uplink.connection import Uplink

faults.PAUSES_S = (0.2,)
agent.TICK_STILL_S, agent.TICK_ENDS_S = 1.0, 2.0


def _now() -> bool:
    return Path(os.environ["SABOTAGE_WHEN"]).exists()


def fail(owner: type, name: str, of: Callable[..., bool]) -> Callable[[], None]:
    """Return what lets a method raise where a condition holds."""

    def sabotage() -> None:
        real = getattr(owner, name)

        def broken(*arguments: object) -> object:
            if _now() and of(*arguments):
                raise KeyError("sabotaged")
            return real(*arguments)

        setattr(owner, name, broken)

    return sabotage


def hang(owner: type, name: str) -> Callable[[], None]:
    """Return what lets a method never come back."""

    def sabotage() -> None:
        real = getattr(owner, name)

        def stuck(*arguments: object) -> object:
            if _now():
                threading.Event().wait()
            return real(*arguments)

        setattr(owner, name, stuck)

    return sabotage


def cancel(owner: type, name: str) -> Callable[[], None]:
    """Return what lets the task that calls a method be cancelled there."""

    def sabotage() -> None:
        real = getattr(owner, name)

        def cancelling(*arguments: object) -> object:
            if _now():
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            return real(*arguments)

        setattr(owner, name, cancelling)

    return sabotage


def hang_task(owner: type, name: str) -> Callable[[], None]:
    """Return what lets a coroutine never come back."""

    def sabotage() -> None:
        async def stuck(*_: object) -> object:
            return await asyncio.Event().wait()

        setattr(owner, name, stuck)

    return sabotage


SABOTAGES = {
    "one rank": fail(LocalRank, "observe", lambda rank, _: rank.rank == 1),
    "figures of one rank": fail(LocalRank, "rows", lambda rank, _: rank.rank == 1),
    "one job": fail(LocalJob, "facts", lambda job, *_: job.key.job == "job1"),
    "the search": fail(agent.Agent, "_open_rings", lambda *_: True),
    "the line": fail(Uplink, "_dial", lambda *_: True),
    "tick hangs": hang(agent.Agent, "_open_rings"),
    "tick is cancelled": cancel(agent.Agent, "_open_rings"),
    "line is cancelled": cancel(Uplink, "_delay_s"),
    "its end hangs": hang_task(Servers, "close"),
}

if __name__ == "__main__":
    SABOTAGES[os.environ["SABOTAGE"]]()
    main()
