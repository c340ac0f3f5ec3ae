"""Makes sure that an agent watches over this node: exactly one, however many ranks ask at once.

The agent holds a file lock for its whole life. Whoever gets that lock is the only one without an
agent, starts it, and hands the locked descriptor down: the lock then belongs to the agent.
"""

import fcntl
import json
import os
import subprocess
import sys

from ncclwatch.contract import config
from ncclwatch.contract.machine.private_dirs import NotPrivateError, open_private

CARD_BYTES_MAX = 4096
STARTS_MAX = 5  # of one rank; an agent that dies at every start must not become a fork bomb

# What an agent must not inherit: it would be taken for a rank, or write into the job's files.
_DROPPED = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "LD_PRELOAD",
    "PYTHONSTARTUP",
    "CUDA_VISIBLE_DEVICES",
)


class LaunchError(Exception):
    """Why no agent could be started, as the end of a sentence."""


def ensure_agent(directory: str) -> "subprocess.Popen[bytes] | None":
    """Start an agent for this node and user unless one lives. Never waits.

    Returns the process that was started, None if an agent lives already. It detaches, so that this
    process ends within moments; `launch_trouble` says what its end meant. Raises `LaunchError`.
    """
    if os.environ.get(config.ENV_AGENT) == "0":
        return None
    try:
        with open_private(directory, make=True) as place:
            fd = place.open("agent.lock", os.O_RDWR | os.O_CREAT)
    except NotPrivateError as error:
        raise LaunchError(str(error)) from error
    except OSError as error:
        raise LaunchError(f"cannot open {directory}/agent.lock: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _start(directory, fd)
    except BlockingIOError:  # it lives
        return None
    except OSError as error:
        raise LaunchError(f"cannot start one: {error}") from error
    finally:
        os.close(fd)


def launch_trouble(started: "subprocess.Popen[bytes]", directory: str) -> str | None:
    """Return "" once the process has detached well, what went wrong otherwise, None while it has done neither."""
    code = started.poll()
    if code is None or code == 0:
        return None if code is None else ""
    return f"`{sys.executable} -m ncclwatch_agent` ended at once with code {code}; see {directory}/agent.log"


def _start(directory: str, fd: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ncclwatch_agent", "--spawned", "--lock-fd", str(fd), "--runtime-dir", directory]
    return subprocess.Popen(
        command,
        env={name: value for name, value in os.environ.items() if name not in _DROPPED},
        cwd="/",
        pass_fds=(fd,),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def agent_pid(directory: str) -> int:
    """Return the process id of the agent that lives now, 0 if unknown or if that is no process of this user."""
    try:
        with open_private(directory) as place:
            pid = int(json.loads(place.read("agent.json", CARD_BYTES_MAX))["pid"])
        return pid if os.stat(f"/proc/{pid}").st_uid in (os.geteuid(), 0) else 0
    except (NotPrivateError, OSError, ValueError, KeyError, TypeError):
        return 0
