"""Starts and ends the server of `ncclwatch run`."""

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from types import TracebackType
from typing import IO

from ncclwatch.contract.errors import NcclwatchError
from ncclwatch.contract.network import tokens

READY_S = 60.0  # it starts in 3 s, and at ten times the load in 20; a training waits no longer for one that lives
STOP_S = 4.0
BACKLOG = 2048  # connections that wait for it until it is ready


class NoServer(NcclwatchError):
    """The server did not start. The message says why and what to do."""


class EmbeddedServer:
    """An ncclwatch-server on a free loopback port that ends with the context, or with this process."""

    def __init__(self) -> None:
        self.url = ""
        self.ready = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "EmbeddedServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether its process lives, answering or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and wait a while until it is `ready`. Raises `NoServer` if it ended.

        The port is there before the server is: whoever comes too early waits in the kernel.
        """
        reader, writer = os.pipe()
        try:
            with (
                socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener,
                tempfile.TemporaryFile() as errors,
            ):
                self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                self._spawn(listener, writer, errors)
                listener.close()
                os.close(writer)
                writer = -1
                said = _read_line(reader, READY_S)
                if said == "":
                    self.stop()
                    raise NoServer(f"the server did not start: {_last_line(errors)}")
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        self.ready = said is not None

    def stop(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _spawn(self, listener: socket.socket, writer: int, errors: IO[bytes]) -> None:
        command = (sys.executable, "-m", "ncclwatch_server", "--listen-fd", str(listener.fileno()), "--ephemeral")
        try:
            # In a session of its own: Ctrl-C is for the training, the report comes after it.
            self._process = subprocess.Popen(
                (*command, "--ready-fd", str(writer), "--parent", str(os.getpid())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(listener.fileno(), writer),
                env=tokens.without(),
                start_new_session=True,
            )
        except OSError as error:
            raise NoServer(f"the server did not start: {error}") from error


def _read_line(reader: int, patience_s: float) -> str | None:
    """Return the line that the other side writes, "" if it ends without one, None if it takes too long."""
    deadline = time.monotonic() + patience_s
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(reader, 64)
        if not chunk:
            return ""
        line += chunk
    return line.decode().strip()


def _last_line(errors: IO[bytes]) -> str:
    text = ""
    with suppress(OSError):
        errors.seek(0)
        text = errors.read(1 << 20).decode(errors="replace").strip()
    last = text.splitlines()[-1] if text else "it ended at once"
    return last.removeprefix("ncclwatch-server: ")
