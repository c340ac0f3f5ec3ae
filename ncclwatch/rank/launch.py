"""Does an agent watch over this node? If not, start one; exactly one, however many ranks ask at once.

The agent holds a file lock for its whole life. Whoever gets that lock is the only one without an
agent, starts it, and hands the locked descriptor down: the lock then belongs to the agent.
"""

import errno
import fcntl
import json
import os
import subprocess
import sys

from ncclwatch.contract import config

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


def ensure_agent(directory: str) -> str:
    """Start an agent for this node and user unless one lives. Returns "" or why there is none."""
    if os.environ.get(config.ENV_AGENT) == "0":
        return ""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fd = os.open(f"{directory}/agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return f"cannot open {directory}/agent.lock: {error.strerror}"
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        return "" if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else f"cannot lock: {error.strerror}"
    try:
        return _start(directory, fd)
    finally:
        os.close(fd)


def _start(directory: str, fd: int) -> str:
    command = [
        sys.executable,
        "-m",
        "ncclwatch_agent",
        "--spawned",
        "--lock-fd",
        str(fd),
        "--runtime-dir",
        directory,
    ]
    environ = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    try:
        # The child detaches and its parent part ends at once, so that no zombie stays with the rank.
        child = subprocess.Popen(
            command,
            env=environ,
            cwd="/",
            pass_fds=(fd,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        code = child.wait(timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        return f"cannot start {' '.join(command[:3])}: {error}"
    return "" if code == 0 else f"{' '.join(command[:3])} ended at once with code {code}; see {directory}/agent.log"


def agent_pid(directory: str) -> int:
    """Return the process id of the agent that lives now, 0 if unknown."""
    try:
        with open(f"{directory}/agent.json", "rb") as file:
            return int(json.load(file)["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
