"""The faults, and what is a true thing to say while each of them lasts."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ncclwatch.contract.model.verdict import Cause
from tests.chaos.world import World

Put = Callable[[World, "Aim"], AbstractContextManager[None]]

STOPPED_S = 5.0
RESTART_S = 1.0  # after which systemd starts a service again
SLOW_STOPPED_S, SLOW_RUNNING_S = 0.25, 0.1


@dataclass(frozen=True, slots=True)
class Aim:
    """Whom a fault hits, and its dice."""

    who: str  # rank, agent or server
    target: int  # the rank, where it hits one
    dice: random.Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `put` begins it, and ends it where its context does."""

    name: str
    who: str
    put: Put
    lasts_s: float = 0.0
    blames: frozenset[Cause] = frozenset()  # what may truly be said of the target while it lasts, or after it
    deadly: bool = False  # the target rank does not live on
    blind: bool = False  # what a rank did may be gone for good: "undetermined" and nothing at all are honest
    tells_twice: bool = False  # whether an alert was taken may be unknown to who has sent it
    lost: bool = False  # the ring of the target cannot be read any more
    preload: bool = False  # needs a clock that can be set
    small_shm: bool = False  # needs a small file system of its own for the rings
    mounts: bool = False  # needs the right to mount
    real: bool = False  # with ranks of torch
    never: frozenset[str] = frozenset()  # steps at which it means nothing

    def hits(self, who: str) -> bool:
        """Whether it is put into this component."""
        return self.who == who


@contextlib.contextmanager
def kill(world: World, aim: Aim) -> Iterator[None]:
    """SIGKILL. The server is started again as systemd would; the agent by the ranks; a rank by nobody."""
    for pid in world.pids(aim.who, aim.target):
        os.kill(pid, signal.SIGKILL)
    if aim.who == "rank":
        world.ranks[aim.target].wait()
    yield
    if aim.who == "server":
        assert world.server is not None
        world.server.wait()
        time.sleep(RESTART_S)
        world.start_server()


@contextlib.contextmanager
def stop(world: World, aim: Aim) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    pids = world.pids(aim.who, aim.target)
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


@contextlib.contextmanager
def slow(world: World, aim: Aim) -> Iterator[None]:
    """Let it run for a quarter of the time only."""
    pids, over = world.pids(aim.who, aim.target), threading.Event()

    def cycle() -> None:
        while not over.is_set():
            _signal(pids, signal.SIGSTOP)
            over.wait(SLOW_STOPPED_S * (0.5 + aim.dice.random()))
            _signal(pids, signal.SIGCONT)
            over.wait(SLOW_RUNNING_S)

    thread = threading.Thread(target=cycle, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# A rank that was killed or stopped is a true root of its own; who is killed while it holds others up is so for them.
DEAD = frozenset({Cause.RANK_CRASHED, Cause.RANK_EXITED, Cause.INIT_INCOMPLETE, Cause.NODE_LOST})
HALTED = frozenset({Cause.PROCESS_FROZEN, Cause.HOST_STALL, Cause.STRAGGLER})

CORE = (
    Fault(name="kill.rank", who="rank", put=kill, lasts_s=1.0, blames=DEAD, deadly=True),
    Fault(name="kill.agent", who="agent", put=kill, lasts_s=1.0),
    Fault(name="kill.server", who="server", put=kill, lasts_s=1.0, tells_twice=True),
    Fault(name="stop.rank", who="rank", put=stop, lasts_s=STOPPED_S, blames=HALTED),
    Fault(name="stop.agent", who="agent", put=stop, lasts_s=STOPPED_S),
    Fault(name="stop.server", who="server", put=stop, lasts_s=STOPPED_S),
    Fault(name="slow.rank", who="rank", put=slow, lasts_s=STOPPED_S, blames=HALTED),
    Fault(name="slow.agent", who="agent", put=slow, lasts_s=STOPPED_S),
    Fault(name="slow.server", who="server", put=slow, lasts_s=STOPPED_S),
)
