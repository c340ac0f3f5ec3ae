"""Asks a rank for its own stacks, where nobody may read them from outside.

A file beside its ring is the question, another one the answer, which its pulse thread writes (the other end is
`ncclwatch.rank.where.own_stacks`). Who does not answer holds the GIL, is stopped, or has detached.
"""

import asyncio
import contextlib
import os
import time
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import NotPrivateError, PrivateDir, open_private
from ncclwatch.contract.model.rank import StackDump
from ncclwatch_agent.stacks.py_spy import DUMP_BYTES_MAX, parse_dump

ANSWER_S_MAX = 1.2  # a pulse comes twice a second; a verdict waits a little longer than this for stacks
LOOK_S = 0.05


async def ask_at(ring: str, rank: int, pid: int, deadline_s: float = ANSWER_S_MAX) -> StackDump:
    """Do as `ask`, where the path of the ring is all that is known."""
    try:
        with open_private(str(Path(ring).parent)) as place:
            return await ask(place, Path(ring).name, rank, pid, deadline_s)
    except (NotPrivateError, OSError) as error:
        return StackDump(rank=rank, failure=f"rank {rank} cannot be asked either: {error}")


async def ask(place: PrivateDir, ring: str, rank: int, pid: int, deadline_s: float = ANSWER_S_MAX) -> StackDump:
    """Return the stacks that the rank with a ring of this name tells of itself, or why there are none."""
    question, answer = ring + config.ASK_SUFFIX, ring + config.ANSWER_SUFFIX
    place.unlink(answer)  # of an earlier question, which nobody waited for
    try:
        os.close(place.open(question, os.O_WRONLY | os.O_CREAT))
    except OSError as error:
        return StackDump(rank=rank, failure=f"rank {rank} cannot be asked either: {question}: {error.strerror}")
    until = time.monotonic() + deadline_s
    try:
        while time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
            data = place.read(answer, DUMP_BYTES_MAX)
            if data:
                return parse_dump(rank, pid, data)
    finally:
        forget(place, ring)
    return StackDump(
        rank=rank,
        failure=f"rank {rank} itself did not answer within {deadline_s:.1f} s: it is stopped, has detached, "
        "or native code in it holds the GIL (the interpreter lock)",
    )


def either(outside: StackDump, own: StackDump) -> StackDump:
    """Return what the rank told itself, or both reasons why there is nothing."""
    if own.threads:
        return own
    return StackDump(rank=outside.rank, failure=f"{outside.failure}. And {own.failure}")


def ring_of(rank: int, pid: int, environ: dict[str, str]) -> str:
    """Return the path of the ring of a process, "" if it has not attached."""
    directory = Path(config.runtime_dir(environ))
    with contextlib.suppress(OSError):
        # A process that attached again has a number after its pid.
        found = [*directory.glob(f"*/{rank}-{pid}.ring"), *directory.glob(f"*/{rank}-{pid}-*.ring")]
        return str(max(found, key=lambda path: path.stat().st_mtime)) if found else ""
    return ""


def forget(place: PrivateDir, ring: str) -> None:
    """Remove what asking may leave behind, as when the rank answers too late or ends."""
    for suffix in (config.ASK_SUFFIX, config.ANSWER_SUFFIX, f"{config.ANSWER_SUFFIX}.new"):
        place.unlink(ring + suffix)
