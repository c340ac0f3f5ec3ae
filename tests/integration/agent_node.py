"""A node for agents under test: ranks without torch, and an agent as a rank would start it."""

import asyncio
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
AGENT = (sys.executable, "-m", "ncclwatch_agent")
NO_SERVER = "http://127.0.0.1:9"  # the discard port: nobody listens


class Node:
    """A runtime directory with ranks and an agent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ranks: list[subprocess.Popen[str]] = []
        self.world_size = 2
        self.agent_pidfd = -1
        self.service: subprocess.Popen[str] | None = None

    def rank(self, number: int, server: str, **more: str) -> "subprocess.Popen[str]":
        """Start a rank, and return when its ring is there; with `held`, when it waits for a line to write its ring."""
        identity = {"job": "job1", "instance": "here", "host": "n", "server": server, "server_named": "1", **more}
        command = [sys.executable, "-m", "tests.integration.agent_child", str(self.directory), str(number)]
        process = subprocess.Popen(
            [*command, str(self.world_size), json.dumps(identity)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.ranks.append(process)
        hear(process, "held" if "held" in more else "ready")
        return process

    def spawn_agent(self) -> int:
        """Start an agent as a rank does, and return its pid."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(self.directory / "agent.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            (self.directory / "agent.json").unlink()
        command = [*AGENT, "--spawned", "--lock-fd", str(fd), "--runtime-dir", str(self.directory)]
        subprocess.run(command, pass_fds=(fd,), check=True, timeout=30)
        os.close(fd)
        pid = int(json.loads(self.card())["pid"])
        self.agent_pidfd = os.pidfd_open(pid)
        return pid

    def card(self) -> str:
        """Return the agent's card, as soon as it is there."""
        path = self.directory / "agent.json"
        while not path.exists():
            select.select([], [], [], 0.01)
        return path.read_text()

    async def agent_ended(self, wait_s: float = 15.0) -> None:
        """Wait for the end of the agent."""
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.agent_pidfd, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), wait_s)
        finally:
            asyncio.get_running_loop().remove_reader(self.agent_pidfd)

    def log(self) -> str:
        """Return what the agent has logged."""
        return (self.directory / "agent.log").read_text()

    def rings(self) -> list[str]:
        """Return the names of the rings that are there."""
        return sorted(path.name.split("-")[0] for path in self.directory.glob("*/*.ring"))

    def is_locked(self) -> bool:
        """Whether an agent holds the lock."""
        with open(self.directory / "agent.lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def close(self) -> None:
        """Leave nothing behind, also after a failed test."""
        for process in (*self.ranks, *([self.service] if self.service else [])):
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        if self.agent_pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.agent_pidfd, signal.SIGKILL)
            os.close(self.agent_pidfd)


def hear(process: "subprocess.Popen[str]", line: str) -> None:
    """Wait for what a rank says next."""
    assert process.stdout is not None
    assert process.stdout.readline() == line + "\n"


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    """Tell a rank what to do."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
