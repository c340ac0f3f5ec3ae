"""Looks at a rank's processes a few times in a row (stacks, state, CPU used) and says whether it moves.

A thread that the scheduler has not run at all between the first look and the last did nothing meanwhile: that is
more than a low CPU load, which a loop that sleeps and works in turn shows as well.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ncclwatch.contract.model.rank import ProcessState, StackDump
from ncclwatch.contract.stacks.ownership import is_users
from ncclwatch.contract.stacks.places import NOWHERE, Doing, Place, place_of
from ncclwatch_agent.diagnose.ranks import FoundRank
from ncclwatch_agent.process.procfs import descendants, environ_of, kernel_place, parse_stat, read_text
from ncclwatch_agent.process.rank_process import CPU_STILL_SHARE, FROZEN
from ncclwatch_agent.stacks.deep_stacks import deepen, main_frames
from ncclwatch_agent.stacks.own_stacks import ask_at, either, ring_of
from ncclwatch_agent.stacks.py_spy import StackDesk

LOOKS = 3
EVERY_S = 1.0
CHILDREN_MAX = 64
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class Motion(str, Enum):
    """What the looks tell of a rank."""

    STILL = "still"  # the same stack each time, its main thread has not run at all in between, nobody works for it
    STAYS = "stays"  # the same stack each time, but it ran in between: it polls, spins, loops, or its children work
    MOVES = "moves"  # another stack
    IDLE = "idle"  # its stack cannot be read; it has not run at all
    BUSY = "busy"  # its stack cannot be read; it ran
    FROZEN = "frozen"  # stopped, held by a debugger, or in an uninterruptible wait, each time
    GONE = "gone"  # it ended while it was looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at one rank."""

    at_s: float
    state: ProcessState
    runs: int  # times the scheduler let the main thread run so far; -1: unknown
    cpu_s: float  # of the process and of what it started
    in_kernel: str  # where the main thread sits
    dump: StackDump


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What all looks at one rank came to."""

    rank: int
    pid: int
    motion: Motion
    state: ProcessState
    place: Place
    in_kernel: str
    cpu_share: float  # of one core, children included
    ran: int  # times its main thread was run between the looks; -1: unknown
    dump: StackDump  # the last one
    children: int = 0


async def look_at(
    ranks: Sequence[FoundRank], desk: StackDesk, looks: int = LOOKS, every_s: float = EVERY_S
) -> tuple[tuple[Seen, ...], float]:
    """Return what is seen of these ranks, and for how many seconds they were looked at."""
    began = time.monotonic()
    rounds = []
    for number in range(looks):
        await asyncio.sleep(max(0.0, began + number * every_s - time.monotonic()))
        rounds.append(await asyncio.gather(*(_look(found, desk) for found in ranks)))
    # What the main thread did while the last stacks were read counts too.
    seen = [
        summarise(found, tuple(each[number] for each in rounds), _runs(found.pid)) for number, found in enumerate(ranks)
    ]
    lasted_s = time.monotonic() - began
    return tuple(await asyncio.gather(*(_deepen(one, desk) for one in seen))), lasted_s


def summarise(found: FoundRank, looks: Sequence[Look], runs_after: int) -> Seen:
    """Return what the looks at a rank say together. Pure; `runs_after` is the scheduler's count after the last."""
    first, last = looks[0], looks[-1]
    told = [look.dump for look in looks if main_frames(look.dump)]
    stacks = [main_frames(dump) for dump in told]
    ran = runs_after - first.runs if min(first.runs, runs_after) >= 0 else -1
    elapsed_s = last.at_s - first.at_s
    cpu_share = max(0.0, last.cpu_s - first.cpu_s) / elapsed_s if elapsed_s > 0 else 0.0
    place = place_of(stacks[-1], is_users) if stacks else NOWHERE
    rested = ran == 0 if ran >= 0 else cpu_share < CPU_STILL_SHARE
    # A main thread may wait for its own threads or children, such as loader workers: then the rank is at work.
    # Inside a collective they do not matter: that waits for peers, whatever a logger beside it does.
    rested = rested and (cpu_share < CPU_STILL_SHARE or place.doing is Doing.COMMUNICATION)
    if last.state in (ProcessState.GONE, ProcessState.ZOMBIE):
        motion = Motion.GONE
    elif last.state in FROZEN and all(look.state is last.state for look in looks):
        motion = Motion.FROZEN
    elif len(told) < 2:
        motion = Motion.IDLE if rested else Motion.BUSY
    elif any(stack != stacks[0] for stack in stacks):
        motion = Motion.MOVES
    else:
        motion = Motion.STILL if rested else Motion.STAYS
    return Seen(
        rank=found.rank,
        pid=found.pid,
        motion=motion,
        state=last.state,
        place=place,
        in_kernel=last.in_kernel,
        cpu_share=cpu_share,
        ran=ran,
        dump=told[-1] if told else last.dump,
        children=0 if motion is Motion.GONE else len(descendants(found.pid, CHILDREN_MAX)),
    )


async def _deepen(seen: Seen, desk: StackDesk) -> Seen:
    """Look closer at a rank that stays where it is and whose Python frames do not tell whether it waits for others.

    Native frames only where it stands still, for reading them halts it.
    """
    if seen.motion not in (Motion.STILL, Motion.STAYS) or seen.place.doing is Doing.COMMUNICATION:
        return seen
    native = seen.motion is Motion.STILL and seen.place.doing is not Doing.DATA
    dump = await deepen(desk, seen.dump, seen.pid, native=native)
    place = place_of(dump.native, is_users)
    return replace(seen, dump=dump, place=place if place.doing is Doing.COMMUNICATION else seen.place)


async def _look(found: FoundRank, desk: StackDesk) -> Look:
    pid = found.pid
    at_s = time.monotonic()
    stat = parse_stat(read_text(f"/proc/{pid}/stat").encode())
    if stat is None or stat.start_ticks != found.start_ticks:
        gone = StackDump(rank=found.rank, failure=f"pid {pid} has ended")
        return Look(at_s=at_s, state=ProcessState.GONE, runs=-1, cpu_s=0.0, in_kernel="", dump=gone)
    ticks = stat.cpu_ticks
    for child in descendants(pid, CHILDREN_MAX):
        below = parse_stat(read_text(f"/proc/{child}/stat").encode())
        ticks += below.cpu_ticks if below is not None else 0
    task = f"/proc/{pid}/task/{pid}"
    return Look(
        at_s=at_s,
        state=stat.state,
        runs=_runs(pid),
        cpu_s=ticks * _TICK_S,
        in_kernel=kernel_place(read_text(f"{task}/syscall"), read_text(f"{task}/wchan")),
        dump=await _dump(found, stat.state, desk),
    )


async def _dump(found: FoundRank, state: ProcessState, desk: StackDesk) -> StackDump:
    """Return the stacks of a rank from outside or, where that is refused and it has attached, as it tells them."""
    dump = await desk.dump(found.rank, found.pid)
    if dump.threads or state in FROZEN:
        return dump
    ring = ring_of(found.rank, found.pid, environ_of(found.pid))
    return either(dump, await ask_at(ring, found.rank, found.pid)) if ring else dump


def _runs(pid: int) -> int:
    """Return how often the scheduler has let the main thread run; -1 where the kernel does not count."""
    fields = read_text(f"/proc/{pid}/task/{pid}/schedstat").split()
    return int(fields[2]) if len(fields) == 3 and fields[2].isdigit() else -1
