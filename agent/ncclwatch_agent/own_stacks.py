"""What does a rank say of its own stacks, where nobody may read them from outside?

A file beside its ring is the question, another one the answer, which its pulse thread writes (the other end is
`ncclwatch.rank.own_stacks`). Who does not answer holds the GIL, is stopped, or has detached.
"""

import asyncio
import contextlib
import os
import time
from pathlib import Path

from ncclwatch.contract import config
from ncclwatch.contract.model import StackDump
from ncclwatch_agent.stacks import DUMP_BYTES_MAX, parse_dump

ANSWER_S_MAX = 1.2  # a pulse comes twice a second; a verdict waits a little longer than this for stacks
LOOK_S = 0.05


async def ask(ring: str, rank: int, pid: int, deadline_s: float = ANSWER_S_MAX) -> StackDump:
    """Return the stacks that the rank with this ring tells of itself, or why there are none."""
    question, answer = ring + config.ASK_SUFFIX, ring + config.ANSWER_SUFFIX
    _remove(answer)  # of an earlier question, which nobody waited for
    try:
        os.close(os.open(question, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return StackDump(rank=rank, failure=f"rank {rank} cannot be asked either: {question}: {error.strerror}")
    until = time.monotonic() + deadline_s
    try:
        while time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
            data = _read(answer)
            if data:
                return parse_dump(rank, pid, data)
    finally:
        forget(ring)
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


def forget(ring: str) -> None:
    """Remove what asking may leave behind, as when the rank answers too late or ends."""
    for suffix in (config.ASK_SUFFIX, config.ANSWER_SUFFIX, f"{config.ANSWER_SUFFIX}.new"):
        _remove(ring + suffix)


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read(DUMP_BYTES_MAX)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        Path(path).unlink()
