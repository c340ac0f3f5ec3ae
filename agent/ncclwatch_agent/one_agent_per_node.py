"""Sees to it that one process is the agent of this node and user: the one that holds the lock.

The lock belongs to an open file description: whoever has inherited the descriptor holds it,
and it is free at the moment when the last holder is gone, however that ended.
"""

import contextlib
import fcntl
import json
import os
import pwd
import signal
from pathlib import Path

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.machine.private_dirs import NotPrivateError, PrivateDir, open_private
from ncclwatch_agent.process.procfs import parse_stat

LOCK_NAME = "agent.lock"
CARD_NAME = "agent.json"
CARD_BYTES_MAX = 4096


class ResidenceError(NcclwatchError):
    """This process cannot be the agent here."""


def owner_to_become(runtime_dir: str) -> tuple[int, int] | None:
    """Return user and group of a directory whose rings root is to watch; None where nobody has to become another.

    What lies there was written by that user, who may name any file and any process in it: what root may read is none
    of that user's business. So root goes on as that user, with the user's rights and no more.
    """
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            found = Path(runtime_dir).lstat()
            return (found.st_uid, found.st_gid) if found.st_uid else None
    return None


def become(owner: tuple[int, int]) -> None:
    """Go on as another user. Raises `ResidenceError`."""
    try:
        _become(*owner)
    except OSError as error:
        raise ResidenceError(
            f"the runtime directory belongs to user {owner[0]}, and root could not become that user: "
            f"{error.strerror}; start the agent as that user"
        ) from error


def _become(uid: int, gid: int) -> None:
    """Become a user for good, with the groups and the home of that user, and without root's secrets."""
    try:
        user = pwd.getpwuid(uid)
        gid = user.pw_gid
        os.initgroups(user.pw_name, gid)
        os.environ |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    except KeyError:  # a user that only numbers know, as in containers
        os.setgroups([])
        os.environ.pop("HOME", None)
    # Rings say which server is dialled: a token of root's would go wherever this user likes. And what this process
    # starts, such as a server or py-spy, belongs to the user, who can read its environment.
    for name in [name for name in os.environ if not _may_be_known(name)]:
        del os.environ[name]
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


_KNOWN = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_KNOWN_BEGINNINGS = ("LC_", "PYTHON", "NCCLWATCH_")


def _may_be_known(name: str) -> bool:
    """Whether a variable of root's is no secret by its name."""
    return (name in _KNOWN or name.startswith(_KNOWN_BEGINNINGS)) and "TOKEN" not in name


def enter(runtime_dir: str) -> PrivateDir:
    """Open the runtime directory, or make it. Raises `ResidenceError`."""
    try:
        return open_private(runtime_dir, make=True)
    except NotPrivateError as error:
        raise ResidenceError(str(error)) from error
    except OSError as error:
        raise ResidenceError(f"cannot open {runtime_dir}: {error.strerror}; {_OWN}") from error


_OWN = "name a directory of your own with --runtime-dir, the same that ranks have in NCCLWATCH_RUNTIME_DIR"


def take_lock(place: PrivateDir) -> int:
    """Take the lock of a runtime directory and return its descriptor, to be kept open for life.

    Raises `ResidenceError` if another agent lives here or the lock cannot be opened.
    """
    try:
        fd = place.open(LOCK_NAME, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ResidenceError(f"cannot open {place.path}/{LOCK_NAME}: {error.strerror}; {_OWN}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ResidenceError(
            f"an agent already watches {place.path} ({_holder(place)}); one is enough for this node and user"
        ) from None
    return fd


def adopt_lock(fd: int, place: PrivateDir) -> None:
    """Keep a lock that the rank which started us has taken. Raises `ResidenceError` if this is not that file."""
    path = f"{place.path}/{LOCK_NAME}"
    try:
        mine, there = os.fstat(fd), place.stat(LOCK_NAME)
        os.set_inheritable(fd, False)
    except OSError as error:
        raise ResidenceError(f"--lock-fd {fd} is not the open {path}: {error.strerror}") from error
    if there is None or (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
        raise ResidenceError(f"--lock-fd {fd} is another file than {path}")


def daemonise() -> None:
    """Go on as a child in a session of its own, and let the parent part end: the rank waits for that.

    torchrun kills the process group of its ranks; an agent in it could not tell how they ended.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread of the rank that started us takes none
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    if null > 2:
        os.close(null)


def write_card(place: PrivateDir, version: str) -> bool:
    """Say who the agent is, in one step. Ranks read it to allow this process to look into them."""
    stat = parse_stat(Path("/proc/self/stat").read_bytes())
    card = {"pid": os.getpid(), "start_ticks": stat.start_ticks if stat else 0, "version": version}
    try:
        place.write(CARD_NAME, json.dumps(card).encode())
    except OSError:
        return False
    return True


def remove_card(place: PrivateDir) -> None:
    """Take the card away, if it is ours."""
    with contextlib.suppress(ValueError, AttributeError):
        if json.loads(place.read(CARD_NAME, CARD_BYTES_MAX)).get("pid") == os.getpid():
            place.unlink(CARD_NAME)


def _holder(place: PrivateDir) -> str:
    try:
        return f"pid {int(json.loads(place.read(CARD_NAME, CARD_BYTES_MAX))['pid'])}"
    except (ValueError, KeyError, TypeError):
        return "it has not said its pid yet"
