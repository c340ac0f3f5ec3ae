"""Starts and stops the server of a node's own, and says whether one is wanted.

With nothing configured a job on one machine needs no server: if nobody answers at the default
address and that address is this host, the agent starts a loopback server as its child.
"""

import asyncio
import contextlib
import importlib.util
import ipaddress
import json
import os
import signal
import socket
import sys
from enum import Enum
from urllib.parse import urlsplit

from ncclwatch.contract import config
from ncclwatch.contract.network import tokens
from ncclwatch_agent.deadline import within
from ncclwatch_agent.log import log

READY_S_MAX = 30.0
STOP_S_MAX = 5.0
STARTS_MAX = 3
OUTPUT_S_MAX = 1.0
RESOLVE_S_MAX = 3.0
_NEEDED = ("ncclwatch_server", "fastapi", "uvicorn", "sqlalchemy", "numpy", "prometheus_client")


class Answer(Enum):
    """What was found at a server's address."""

    NOBODY = "nobody"  # nothing listens there, or nothing answers
    STRANGER = "stranger"  # something that is no ncclwatch server
    FOREIGN = "foreign"  # a server of another user, or of whom nobody can tell
    REFUSAL = "refusal"  # an ncclwatch server that does not take this agent's news


def wanted_port(answer: Answer) -> int | None:
    """Return the port to start a server of our own on (0: any free one), None to start none."""
    if answer is Answer.REFUSAL:
        return None
    return config.DEFAULT_PORT if answer is Answer.NOBODY else 0


def missing_parts() -> str:
    """Return the sentence for a machine on which the server cannot run, "" if it can."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return (
        f"no server answers and none can be started here ({missing[0]} is not installed); "
        f"run: {sys.executable} -m pip install 'ncclwatch[server]'"
    )


async def is_this_host(url: str) -> bool:
    """Whether the host of a URL is this machine: loopback, or an address of one of its interfaces."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host == socket.gethostname():
        return True
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return True
    try:
        loop = asyncio.get_running_loop()
        found = await within(RESOLVE_S_MAX, loop.getaddrinfo(host, 0, type=socket.SOCK_DGRAM))
    except (OSError, UnicodeError, asyncio.TimeoutError):
        return False
    return any(_is_ours(family, address) for family, _, _, _, address in found)


def _is_ours(family: int, address: tuple[object, ...]) -> bool:
    """Whether an address can be bound here."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


class LocalServer:
    """The server that this agent started, if any. It lives no longer than the agent."""

    def __init__(self, command: tuple[str, ...] = (sys.executable, "-m", "ncclwatch_server")) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starts = 0
        self._newest_line = ""
        self.port = 0
        self.remote_port = 0  # where agents of other nodes come in, if they may
        self.certificate = ""  # that is shown to them, PEM

    @property
    def url(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self, port: int, *, remote: str = "", token: str = "", stand_by: bool = False) -> str:
        """Start it and wait until it listens. Returns "" or the sentence why there is none.

        With a `remote` address it lets agents of other nodes in there, who show this token; one to `stand_by` does
        not end while no agent is there.
        """
        if self._process is not None and self._process.returncode == 0:
            self._starts = 0  # nobody needed it any more, and so it ended
        if self._starts >= STARTS_MAX:
            return f"the local server ended {STARTS_MAX} times; see agent.log, and start ncclwatch-server by hand"
        self._starts += 1
        receive, send = os.pipe()
        os.set_inheritable(send, True)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, "--port", str(port), "--ephemeral", "--ready-fd", str(send),
                *(("--remote", remote, "--parent", str(os.getpid())) if remote else ()),
                *(("--stand-by",) if stand_by else ()),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                pass_fds=(send,), start_new_session=True, cwd="/",
                env=tokens.without() | ({config.ENV_AGENT_TOKEN: token} if token else {}),
            )  # fmt: skip
        except OSError as error:
            os.close(receive)
            return f"cannot start {' '.join(self._command)}: {error.strerror}"
        finally:
            os.close(send)
        self._reading = asyncio.create_task(self._keep_output(self._process))
        said, further = await _read_lines(receive, 2 if remote else 1)
        if said.strip().isdigit():
            self.port = int(said)
            if remote:
                shown = json.loads(further)
                self.remote_port, self.certificate = shown["port"], shown["certificate"]
            log.info("started a server on http://127.0.0.1:%d (pid %d)", self.port, self._process.pid)
            return ""
        with contextlib.suppress(asyncio.TimeoutError):  # it has closed the pipe, so most likely it is ending
            await within(OUTPUT_S_MAX, self._process.wait())
        await self.stop()
        why = self._newest_line or f"exit code {self._process.returncode}"
        return f"no server could be started here ({why[:500]}); see agent.log"

    async def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL if that is not enough."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await within(STOP_S_MAX, process.wait())
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._reading is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(OUTPUT_S_MAX, self._reading)
            self._reading = None

    async def _keep_output(self, process: asyncio.subprocess.Process) -> None:
        """Put what the server prints into our log, which is bounded."""
        stream = process.stdout
        if stream is None:
            return
        while True:
            try:
                line = (await stream.readline()).decode(errors="replace")
            except ValueError:  # a line longer than the stream's limit; the rest of it follows
                continue
            if not line:
                return
            self._newest_line = line.strip() or self._newest_line
            log.info("server: %s", line.rstrip())


async def _read_lines(fd: int, count: int) -> tuple[str, str]:
    """Return the first lines that arrive on a pipe, at most two, "" for those that do not within READY_S_MAX."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        found = [(await within(READY_S_MAX, reader.readline())).decode(errors="replace") for _ in range(count)]
        return found[0], found[-1]
    except asyncio.TimeoutError:
        return "", ""
    finally:
        transport.close()
