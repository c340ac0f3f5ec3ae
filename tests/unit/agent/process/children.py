"""Gives a test a Python process of its own, which waits in what it is told to."""

import os
import signal
import subprocess
import sys


class Child:
    """A process that says "ready" on its standard output before it waits."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def start(self, text: str) -> int:
        """Start a program, and return its pid when it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self.process.pid

    def end(self) -> None:
        """Kill it, and what it has started."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
