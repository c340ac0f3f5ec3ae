"""Which process is the one agent of this node and user? The one that holds the lock.

The lock belongs to an open file description: whoever has inherited the descriptor holds it,
and it is free at the moment when the last holder is gone, however that ended.
"""

import contextlib
import fcntl
import json
import os
from pathlib import Path

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch_agent.procfs import parse_stat

LOCK_NAME = "agent.lock"
CARD_NAME = "agent.json"


class ResidenceError(NcclwatchError):
    """This process cannot be the agent here."""


def take_lock(runtime_dir: str) -> int:
    """Take the lock of a runtime directory and return its descriptor, to be kept open for life.

    Raises `ResidenceError` if another agent lives here or the directory cannot be used.
    """
    try:
        Path(runtime_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(f"{runtime_dir}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ResidenceError(
            f"cannot open {runtime_dir}/{LOCK_NAME}: {error.strerror}; name a directory of your own with "
            "--runtime-dir, the same that ranks have in NCCLWATCH_RUNTIME_DIR"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ResidenceError(
            f"an agent already watches {runtime_dir} ({_holder(runtime_dir)}); one is enough for this node and user"
        ) from None
    return fd


def adopt_lock(fd: int, runtime_dir: str) -> None:
    """Keep a lock that the rank which started us has taken. Raises `ResidenceError` if this is not that file."""
    try:
        mine, there = os.fstat(fd), Path(f"{runtime_dir}/{LOCK_NAME}").stat()
        os.set_inheritable(fd, False)
    except OSError as error:
        raise ResidenceError(f"--lock-fd {fd} is not the open {runtime_dir}/{LOCK_NAME}: {error.strerror}") from error
    if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
        raise ResidenceError(f"--lock-fd {fd} is another file than {runtime_dir}/{LOCK_NAME}")


def daemonise() -> None:
    """Go on as a child in a session of its own, and let the parent part end: the rank waits for that.

    torchrun kills the process group of its ranks; an agent in it could not tell how they ended.
    """
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    if null > 2:
        os.close(null)


def write_card(runtime_dir: str, version: str) -> bool:
    """Say who the agent is, in one step. Ranks read it to allow this process to look into them."""
    path = f"{runtime_dir}/{CARD_NAME}"
    stat = parse_stat(Path("/proc/self/stat").read_bytes())
    card = {"pid": os.getpid(), "start_ticks": stat.start_ticks if stat else 0, "version": version}
    temporary = f"{path}.{os.getpid()}"
    try:
        Path(temporary).write_text(json.dumps(card), encoding="utf-8")
        Path(temporary).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        return False
    return True


def remove_card(runtime_dir: str) -> None:
    """Take the card away, if it is ours."""
    path = Path(f"{runtime_dir}/{CARD_NAME}")
    with contextlib.suppress(OSError, ValueError):
        if json.loads(path.read_bytes()).get("pid") == os.getpid():
            path.unlink()


def _holder(runtime_dir: str) -> str:
    try:
        return f"pid {int(json.loads(Path(f'{runtime_dir}/{CARD_NAME}').read_bytes())['pid'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it has not said its pid yet"
